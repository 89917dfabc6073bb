"""Asynchronous reinforcement-learning post-training, run end to end as Prefect flows."""
