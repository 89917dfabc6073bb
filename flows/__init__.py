"""Prefect flows, one a module, each a recipe; flows, tasks and two commands are all of Offbeat that knows Prefect."""
