"""Prefect tasks, one module per stage of the lifecycle: retries and timeouts; a body is one call into offbeat."""
