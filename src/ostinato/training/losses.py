"""What the training objective needs to know where the rows of a batch are spread over processes."""

from __future__ import annotations

from ostinato.data.batch import Batch
from ostinato.evaluation.depth import real_tokens
from ostinato.models.base import TokenModel
from ostinato.models.losses import TokenShares
from ostinato.models.output import ByRouter


def add_empty_routings(routings: ByRouter, model: TokenModel) -> ByRouter:
    """Return the routings with one without rows added for every use of a router, in the order of the model's plans.

    Processes that all-reduce balance losses have to know the same routers in the same order, also those that none of a
    process's own rows reached.
    """
    empty: ByRouter = {}
    for routing in model.no_routings():
        empty.setdefault(routing.router, []).append(routing)
    return {router: [*mine, *routings.get(router, ())] for router, mine in empty.items()}


def token_shares(shard: Batch, batch: Batch, model: TokenModel) -> TokenShares:
    """Return by stack what share of a batch's real tokens a process's shard of it has."""
    return {
        name: float(real_tokens(name, shard).sum()) / float(real_tokens(name, batch).sum()) for name in model.stacks
    }
