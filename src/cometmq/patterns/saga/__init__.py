"""Flows of several services that end completely or are taken back: sagas, and try-confirm-cancel.

- `Saga` names the steps of a flow, with compensations or confirmations.
- `Sagas` runs flows from a table, and resumes them after a crash.
- `TccBranch` keeps a participant's own table right when calls come twice, late or in no order.
"""

from cometmq.patterns.saga.sagas import Sagas, SagasStatus
from cometmq.patterns.saga.steps import Refused, Saga, SagaCall, SagaRow, SagaState, SagaStep
from cometmq.patterns.saga.table import sagas_table
from cometmq.patterns.saga.tcc import TccBranch, tcc_table

__all__ = [
    "Refused",
    "Saga",
    "SagaCall",
    "SagaRow",
    "SagaState",
    "SagaStep",
    "Sagas",
    "SagasStatus",
    "TccBranch",
    "sagas_table",
    "tcc_table",
]
