"""Several ranks in the threads of this process, for tests of what they agree on."""

import threading

from loopback import Hub


def run_ranks(body, size=2, seconds=20, draw=None):
    """Calls body(rank, transport) on a thread of each rank; `transport()` makes one for the next optimizer. Returns what each returned, or the exception that
    ended it: then the rank has left the job."""
    hub, results = Hub(size, seconds), [None] * size

    def run(rank):
        try:
            results[rank] = body(rank, lambda: hub.transport(rank, draw))
        except BaseException as error:
            results[rank] = error
            hub.leave(rank, error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
