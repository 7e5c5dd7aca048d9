"""What a search of a sweep's values found: trials, laws of transfer, what tuning is worth."""
