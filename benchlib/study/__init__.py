"""One study: the loop that runs it, the bench that it runs on, what is kept, and the frames read from it."""
