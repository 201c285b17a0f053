/* What bulk may cost an urgent slice on its own host: rank 0 broadcasts BULK bytes, and beside it URGENT bytes COUNT
 * times, and prints when it submitted each of those. Used by test_overtaking.py.
 *
 *   overtake BULK URGENT COUNT
 *
 * Every rank submits the next urgent operation as soon as it has the one before, long before rank 0 does. So what rank
 * 0 submits has its grant already and is eligible at once.
 *
 * Rank 0 prints "post T" (nanoseconds of CLOCK_REALTIME, the clock of packet captures) for every urgent operation, then
 * "noise T": the 99th percentile of how much later than asked for a thread of this process wakes, meanwhile. Then all
 * ranks wait to be ended: the bulk is not over. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

#define MILLISECOND 1000000l
#define WAKE_UPS_MAX 100000

static atomic_int measuring = 1;
static long late_ns[WAKE_UPS_MAX];
static size_t wake_ups;

static long long nanoseconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000 * (long long)MILLISECOND + t.tv_nsec;
}

static void pause_ns(long ns) {
  const struct timespec length = {ns / (1000 * MILLISECOND), ns % (1000 * MILLISECOND)};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &length, NULL);
}

static void* measure_noise(void* unused) {
  (void)unused;
  while (measuring && wake_ups < WAKE_UPS_MAX) {
    const long long before = nanoseconds(CLOCK_MONOTONIC);
    pause_ns(MILLISECOND);
    late_ns[wake_ups++] = (long)(nanoseconds(CLOCK_MONOTONIC) - before - MILLISECOND);
  }
  return NULL;
}

static int by_value(const void* a, const void* b) {
  const long x = *(const long*)a, y = *(const long*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  tl_config_t config = TL_CONFIG_INIT;
  tl_context_t* context = NULL;
  if (argc != 4) {
    fprintf(stderr, "usage: overtake BULK URGENT COUNT\n");
    return 2;
  }
  check(tl_init(&config, &context));
  tl_tensor_t* bulk = add_broadcast(context, "bulk", strtoull(argv[1], NULL, 10), 0.0f);
  tl_tensor_t* urgent = add_broadcast(context, "urgent", strtoull(argv[2], NULL, 10), 1.0f);
  const int count = atoi(argv[3]), sender = tl_rank(context) == 0;
  check(tl_barrier(context, -1.0));
  tl_request_t* under_way = NULL;
  check(tl_post(bulk, &under_way));
  pthread_t noise;
  if (sender) {
    pause_ns(200 * MILLISECOND); /* the bulk flows */
    pthread_create(&noise, NULL, measure_noise, NULL);
  }
  for (int i = 0; i < count; ++i) {
    tl_request_t* request = NULL;
    if (sender) {
      pause_ns((15 + i * 7 % 11) * MILLISECOND + i * 37 % 100 * 10000); /* in step with nothing else */
      printf("post %lld\n", nanoseconds(CLOCK_REALTIME));
    }
    check(tl_post(urgent, &request));
    check(tl_wait(request, -1.0));
  }
  if (sender) {
    measuring = 0;
    pthread_join(noise, NULL);
    qsort(late_ns, wake_ups, sizeof late_ns[0], by_value);
    printf("noise %ld\n", late_ns[wake_ups * 99 / 100]);
    fflush(stdout);
  }
  pause();
  return 0;
}
