"""The stages of a run around its training, without Prefect: what the tasks call, one function each.

provisioning ──> (training) ──> stages: verify ──> quality ──> register ──> judge ──> report
                  └── relay: metrics to MLflow          cleanup: always
"""
