"""Workers poll for due runs, claim them, renew a lease and reap dead workers."""
