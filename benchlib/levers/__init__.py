"""What a level can turn: one file for each key."""
