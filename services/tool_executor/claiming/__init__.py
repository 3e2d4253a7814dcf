"""Pure decisions about calls: which ones to claim, whether to run them, what their end means."""
