"""What a level can turn: servers and their settings, the load, the host; and the bench that turns them."""
