"""PostgreSQL: installations, clusters of ours with their followers, and servers that are not ours."""
