"""Commands about messages: `produce`, `consume`, staged batches, transactions."""
