"""PostgreSQL installations, embedded clusters, replicas and external servers."""
