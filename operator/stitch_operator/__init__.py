"""What stands between jobs and workers: the HTTP gateway and its ledger, and the commands that run
and ask them. In a cluster, also the webhook and the reconciler."""
