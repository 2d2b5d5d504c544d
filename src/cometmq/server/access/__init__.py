"""Who may send which request: signatures, permissions, and the accounts behind them."""
