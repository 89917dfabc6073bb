"""Pure torch: value targets and advantages, losses, schedules. Tensors in, tensors out."""
