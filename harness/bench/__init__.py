"""isoloss bench: time and memory of recipes against `standard`, and of the peers on the index."""
