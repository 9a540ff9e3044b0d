"""The Queues recipe of FoundationDB's documentation, for the test beside this folder.

usage: recipe.py enqueue|dequeue PREFIX COUNT

PREFIX is the queue's, in hexadecimal. Enqueues the numbers from 0 on as text, or dequeues as many
items and prints each on a line. The cluster is the one that FDB_CLUSTER_FILE names.
"""

import os
import sys

import fdb

fdb.api_version(730)


def last_index(tr, queue):
    """The index of the last item, read by snapshot so that enqueues do not conflict."""
    bounds = queue.range()
    for key, _ in tr.snapshot.get_range(bounds.start, bounds.stop, limit=1, reverse=True):
        return queue.unpack(key)[0]
    return 0


@fdb.transactional
def enqueue(tr, queue, value):
    tr[queue.pack((last_index(tr, queue) + 1, os.urandom(20)))] = value


@fdb.transactional
def dequeue(tr, queue):
    bounds = queue.range()
    for key, value in tr.get_range(bounds.start, bounds.stop, limit=1):
        del tr[key]
        return bytes(value)
    return None


def main():
    verb, prefix, count = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])
    db = fdb.open()
    queue = fdb.Subspace(rawPrefix=prefix)
    done = 0
    while done < count:
        if verb == "enqueue":
            enqueue(db, queue, b"%d" % done)
        else:
            value = dequeue(db, queue)
            if value is None:
                continue
            print(value.decode(), flush=True)
        done += 1


main()
