"""How to reach an API server: which server, through which proxy, with which certificates, as which user.

Our own, because the alternatives do less or cost more. lightkube 1.0's kubeconfig knows neither tls-server-name nor
proxy-url, gives exec plugins no information on the cluster, and does not impersonate; importing it takes 1.4 times the
CPU time of our whole API client. Importing the official client takes 3.2 times (benchmarks/cluster_access.py).
"""
