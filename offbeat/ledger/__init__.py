"""The ledger: the plan (`rows`, `plan`) and the account of every trajectory (`account`)."""

from offbeat.ledger.account import Account, account_of, fates, read_account, read_outcomes, records_from
from offbeat.ledger.plan import PlanView, PlanWriter, Resolved
from offbeat.ledger.rows import Cursor, Drop, Event, Fate, Outcome, Row, Segment, StepRow, Totals

__all__ = [
    "Account",
    "Cursor",
    "Drop",
    "Event",
    "Fate",
    "Outcome",
    "PlanView",
    "PlanWriter",
    "Resolved",
    "Row",
    "Segment",
    "StepRow",
    "Totals",
    "account_of",
    "fates",
    "read_account",
    "read_outcomes",
    "records_from",
]
