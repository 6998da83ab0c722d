# The etcd of the tests on a cluster; the context is the folder of the program that `python -m support.etcd` prints.
FROM alpine:3.10
COPY etcd /bin/etcd
