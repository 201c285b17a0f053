/* tensorlane.h: the C interface of tensorlane, the only thing a framework must know.
 *
 * In the shape of UCC and NCCL: opaque handles, a status with an error text, configuration structs stamped with size
 * and version, asynchronous operations with test, wait and callback. No exception crosses it. Link with -ltensorlane.
 *
 *   tl_config_t config = TL_CONFIG_INIT;          // rank, world size, job... from torchrun's environment variables
 *   tl_context_t* context;
 *   tl_init(&config, &context);
 *   float* x; tl_alloc(context, 4096, (void**)&x);
 *   tl_request_t* request;
 *   tl_allreduce(context, "x", x, x, 1024, TL_FLOAT32, TL_SUM, NULL, &request);
 *   tl_wait(request, -1.0);
 *   tl_finalize(context);
 *
 * Threads: a context and its tensors may be used from any thread; one request from one thread at a time. */
#ifndef TENSORLANE_H
#define TENSORLANE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TL_VERSION_MAJOR 0
#define TL_VERSION_MINOR 1
#define TL_API __attribute__((visibility("default")))

typedef enum {
  TL_OK = 0,
  TL_ERROR_INVALID_ARGUMENT = 1,
  TL_ERROR_NOT_FOUND = 2,
  TL_ERROR_ALREADY_EXISTS = 3,
  TL_ERROR_PERMISSION_DENIED = 4,
  TL_ERROR_RESOURCE_EXHAUSTED = 5,
  TL_ERROR_UNAVAILABLE = 6,
  TL_ERROR_TIMED_OUT = 7,
  TL_ERROR_ABORTED = 8,
  TL_ERROR_MISMATCH = 9,
  TL_ERROR_VERSION_MISMATCH = 10,
  TL_ERROR_CORRUPT = 11,
  TL_IN_PROGRESS = 12,
  TL_ERROR_INTERNAL = 13
} tl_status_t;

typedef enum {
  TL_FLOAT32 = 0,
  TL_FLOAT64 = 1,
  TL_FLOAT16 = 2,
  TL_BFLOAT16 = 3,
  TL_INT8 = 4,
  TL_INT32 = 5,
  TL_INT64 = 6,
  TL_UINT8 = 7
} tl_dtype_t;
/* Sums and products of integers wrap around; their average is refused (invalid argument). TL_MIN and TL_MAX of
 * floating-point numbers are NaN where any rank's is NaN. Sums, averages and products of 16-bit numbers are formed in
 * float32 and rounded once. The job's plan fixes in which order ranks are combined, arrival never does: all ranks get
 * the same bits, also of several NaNs, and of 0 and -0, which are equal. */
typedef enum { TL_SUM = 0, TL_AVERAGE = 1, TL_MIN = 2, TL_MAX = 3, TL_PRODUCT = 4 } tl_op_t;
/* TL_PUSH and TL_PULL are the two halves of an allreduce, apart: of two tensors with one buffer and one root. When
 * every rank's push is done, the hosts' buffers together hold the reduced values, and a pull, posted when the rank's
 * own push is done, brings all of them to every rank. The root's host has the first part: let roots differ.
 * TL_REDUCESCATTER cuts the buffer between rows, as tl_reducescatter() does; what a rank has outside of its own rows
 * means nothing afterwards. TL_REDUCE leaves the reduced values in the root's buffer; what the others' hold means
 * nothing afterwards.
 *
 * In these three, parts go from one rank to one other. `count` says the same on all ranks, but buffers differ:
 *   TL_GATHER    `count` is of the gathered result, a multiple of the world size. The root's buffer has all of it, by
 *                rank, its own part in its place; every other rank's buffer has count / world size elements, its part.
 *   TL_SCATTER   the same, the other way: the root's buffer has the parts of all ranks, every other rank's its own.
 *   TL_ALLTOALL  `count` is of the buffer, a multiple of twice the world size. The first half is what the rank sends,
 * by the rank that it is for, and stays as it is; the second half is what it gets, by the rank that it is from. */
typedef enum {
  TL_ALLREDUCE = 0,
  TL_BROADCAST = 1,
  TL_ALLGATHER = 2,
  TL_BARRIER = 3,
  TL_PUSH = 4,
  TL_PULL = 5,
  TL_REDUCESCATTER = 6,
  TL_REDUCE = 7,
  TL_GATHER = 8,
  TL_SCATTER = 9,
  TL_ALLTOALL = 10
} tl_operation_t;

/* Where a buffer lies. TL_MEMORY_CUDA: memory of an NVIDIA GPU that this process may use (of cudaMalloc, of PyTorch's
 * allocator). A thread of the library copies it through shared memory that is pinned for the GPU, in slices, the most
 * urgent first, and the daemon needs no CUDA. libcuda is loaded when the first such buffer is given.
 *
 * Order is that of streams: an operation reads its buffer when the stream that the call names has done what it was
 * given so far, and tl_stream_wait() makes a stream wait for the result, while the calling thread goes on. A stream is
 * a CUstream or cudaStream_t of the buffer's GPU; null is the legacy default stream: what other streams have yet to
 * write would be missed. From the call until the request is done, or until a stream that tl_stream_wait() was called
 * for has come so far, the buffers belong to tensorlane, `in`, too. A registered buffer stays allocated, and where it
 * is, until tl_unregister(). */
typedef enum { TL_MEMORY_HOST = 0, TL_MEMORY_CUDA = 1 } tl_memory_t;

/* How the hosts of a job aggregate a tensor. DEFAULT: as daemon.yaml of rank 0's host says. AUTO: what its cost model
 * expects to be the fastest for the tensor's size, operation and class on these hosts; `tensorlane status` shows it. A
 * push and its pull are cut in one way: theirs is DEFAULT. */
typedef enum {
  TL_PATTERN_DEFAULT = 0,
  TL_PATTERN_RING = 1,
  TL_PATTERN_PARAMETER_SERVER = 2,
  TL_PATTERN_HALVING_DOUBLING = 3,
  TL_PATTERN_TREE = 4,
  TL_PATTERN_AUTO = 255
} tl_pattern_t;

typedef struct tl_context tl_context_t; /* one rank of one job, or of one process set */
typedef struct tl_tensor tl_tensor_t;   /* a registered tensor; belongs to its context */
typedef struct tl_request tl_request_t; /* one operation under way */

/* The name of a status, never null. */
TL_API const char* tl_status_string(tl_status_t status);
/* What the last failed call of this thread has to say: "WHAT: WHERE: WHAT TO DO". Valid until the thread's next call;
 * never null. */
TL_API const char* tl_last_error(void);

/* Null and -1 mean: from the environment, else the default. API > environment > the daemon's configuration.
 *
 * Of ranks the launcher says it: torchrun by the variables below, else Open MPI's mpirun (OMPI_COMM_WORLD_RANK, _SIZE,
 * _LOCAL_RANK, _LOCAL_SIZE), else Slurm's srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID,
 * SLURM_STEP_TASKS_PER_NODE). RANK without WORLD_SIZE, or the other way round, is what a shell has left: it is refused
 * where mpirun or srun says that there are several ranks, unless the program says what is missing. Only torchrun says
 * where rank 0 is; under the others, set MASTER_ADDR where there are several hosts. */
typedef struct {
  size_t size;          /* set by TL_CONFIG_INIT */
  uint32_t version;     /* set by TL_CONFIG_INIT */
  int rank;             /* RANK, else 0 */
  int world_size;       /* WORLD_SIZE, else 1 */
  int local_rank;       /* LOCAL_RANK, else 0 */
  int local_world_size; /* LOCAL_WORLD_SIZE, else 1 */
  const char* job;      /* TENSORLANE_JOB, TORCHELASTIC_RUN_ID, else "default" */
  const char*
      secret; /* TENSORLANE_JOB_SECRET or the contents of TENSORLANE_JOB_SECRET_FILE; needed when the job spans hosts */
  const char* leader;     /* MASTER_ADDR: host of rank 0 */
  const char* socket;     /* TENSORLANE_SOCKET, else /run/tensorlane/tensorlaned.sock */
  double timeout_seconds; /* TENSORLANE_TIMEOUT, else 60: how long joining, registering, unregistering and leaving wait
                             for the other ranks. The rank whose time is over first ends that for all, so that
                             one that came later waits less */
  int leader_port;        /* MASTER_PORT, else 0: tells jobs of one user, leader and name apart */
} tl_config_t;
#define TL_CONFIG_INIT \
  { sizeof(tl_config_t), 1, -1, -1, -1, -1, NULL, NULL, NULL, NULL, -1.0, -1 }

/* Joins the job: returns when every rank has joined and all hosts are connected. Errors: invalid argument (names the
 * field), unavailable (no daemon at the socket, and the world has more than one rank), permission denied (user or
 * secret), version mismatch, timed out (names the ranks that have not come), resource exhausted.
 *
 * A process may have several contexts, of as many jobs. Collectives among some of a job's ranks: tl_process_set().
 *
 * A rank that is its whole job needs no daemon: where there is none at the socket, every call works in this process
 * alone, tl_host() is null, and tl_daemon_status() says in "alone" why. */
TL_API tl_status_t tl_init(const tl_config_t* config, tl_context_t** context);
/* Of a process set, see tl_process_set(). Of a job: waits (at most timeout_seconds) until nothing of this rank is under
 * way, leaves the job, frees everything of the
 * context, tensors, requests and arena memory included. Returns why, when it did not leave in peace: the job's error,
 * or timed out (operations still under way); everything is freed all the same. In other threads tl_register,
 * tl_unregister, tl_barrier, tl_alloc and tl_daemon_status that still wait end with an error (aborted; the text says
 * that another thread has called tl_finalize); any other call must have returned. Invalid argument, and nothing is
 * freed: inside a callback, or in the child of a fork, which may not use its parent's context in any way. */
TL_API tl_status_t tl_finalize(tl_context_t* context);
/* Of a job's context. Ends at once what is under way in it, process sets included: every request fails with "aborted",
 * every call of another thread that waits returns that, and nothing can be started any more. `why`, which may be null,
 * is the first part of the text. The buffers are the program's again as after any failed request. The other ranks hear
 * of it when tl_finalize() is called, which has nothing to wait for then, or at once, where ranks share what is under
 * way on their GPUs (tl_gpu_alloc()): to them this rank has left the job without a word, and the job is over. Any
 * thread, callbacks included. */
TL_API tl_status_t tl_abort(tl_context_t* context, const char* why);

/* Some of a job's ranks (Horovod's process sets, MPI's communicators), whose collectives and messages nobody else takes
 * part in and none are mixed up with. */
typedef struct {
  size_t size;      /* set by TL_PROCESS_SET_INIT */
  const int* ranks; /* of the job, ascending, this one among them; at most 8,192 */
  size_t count;     /* how many */
  uint32_t number;  /* 1 to 2^24 - 1, alike on all of them: no other set that has one of these ranks has had it in this
                       job */
  int local_rank;   /* these two: what tl_local_rank() and tl_local_size() are to say; else 0 and 1 */
  int local_size;
} tl_process_set_config_t;
#define TL_PROCESS_SET_INIT \
  { sizeof(tl_process_set_config_t), NULL, 0, 0, -1, -1 }
/* A context for a process set, which every function takes that has a context and says nothing else: ranks are counted
 * in the set, from 0, and the names of groups, tensors and array calls are its own. It shares the session, connections
 * and life of the job, so making one costs nothing, and asks nobody; `context` is the job's. tl_finalize() gives it
 * back, and what is registered for it: it waits for nobody, and what it took of the daemons is free once all of its
 * ranks have called it. A rank that goes on to use a set that another one has left ends the job, with an error that
 * names both. The job's tl_finalize() gives back all of its sets. Errors: invalid argument (names the field); of
 * tl_finalize(): invalid argument, and nothing is given back, while a request of the set has not been waited for. */
TL_API tl_status_t tl_process_set(tl_context_t* context, const tl_process_set_config_t* config, tl_context_t** set);

TL_API int tl_rank(const tl_context_t* context);
TL_API int tl_size(const tl_context_t* context);
TL_API int tl_local_rank(const tl_context_t* context);
TL_API int tl_local_size(const tl_context_t* context);
/* The name in the fabric file of the host that this rank is on. Valid as long as the context; null without one,
 * and where the rank is alone, without a daemon. */
TL_API const char* tl_host(const tl_context_t* context);
/* Status of the daemon as JSON, however long: of its jobs those of this program's user, of others' jobs whose they are
 * and their states (root sees all of all). The text belongs to the context until the next call. */
TL_API tl_status_t tl_daemon_status(tl_context_t* context, const char** json);

/* Memory that the daemon shares (an arena): operations on it copy nothing. 64-byte aligned, zeroed, freed by tl_free or
 * tl_finalize. */
TL_API tl_status_t tl_alloc(tl_context_t* context, size_t bytes, void** memory);
/* Errors: invalid argument (not from tl_alloc, or a tensor of tl_register lies in it). */
TL_API tl_status_t tl_free(tl_context_t* context, void* memory);
/* 1 when [memory, memory + bytes) lies in an arena of the context, else 0. */
TL_API int tl_is_shared(const tl_context_t* context, const void* memory, size_t bytes);

/* Memory of the GPU that has this number in the process (cudaGetDevice), in whole units of 2 MiB, with anything in it.
 * It is as good as any other of that GPU; besides, where TENSORLANE_GPU_SUMS is 1 on all ranks, the ranks of a host
 * share registered tensors that lie in it: allreduces of 256 KiB and more, of a job or process set that spans hosts and
 * has the same number of ranks on each, two to sixteen. Of a group all such tensors have to lie in it, at multiples of
 * 64 bytes and on one GPU, or none is shared. Each of these ranks sums a part of the tensor on its GPU, reading the
 * others' by CUDA IPC, and only that part passes the host's memory. Where two hosts add, results have the same bits; of
 * more hosts a tensor's parts may be added in another order, which is as fixed. tl_gpu_status() says of each group
 * whether it is so, and why not; names of more than 160 bytes are not shared. What NVIDIA's driver is asked for in
 * tl_register(), tl_unregister() and tl_gpu_free() may wait for all of the GPU: they wait up to a second until no
 * stream waits for a result, and are best called when none does. After tl_finalize() the memory is still the program's.
 * Errors: invalid argument, resource exhausted, unavailable (no driver, or an old one). */
TL_API tl_status_t tl_gpu_alloc(tl_context_t* context, int device, size_t bytes, void** memory);
/* `context` is null for memory that tl_finalize() has left, in which no other context has a tensor. The next
 * tl_gpu_alloc() of the process uses memory that other ranks may still have mapped, after an error or from a context
 * that has ended; else it is freed. Null memory is ignored. Errors: invalid argument (not from tl_gpu_alloc, or a
 * registered tensor lies in it), unavailable. */
TL_API tl_status_t tl_gpu_free(tl_context_t* context, void* memory);

/* One tensor of a group. `buffer` null: the library allocates one. Everything but `buffer` must be the same on all
 * ranks. */
typedef struct {
  size_t size;      /* set by TL_TENSOR_INIT */
  const char* name; /* unique in the job, at most 255 bytes */
  void* buffer;     /* shared memory of `count` elements; the operation works in place */
  uint64_t count;   /* elements of the buffer, 1 to 2^32; for allgather: of the gathered result, a multiple of the world
                       size; for gather, scatter and alltoall: see tl_operation_t */
  tl_dtype_t dtype;
  tl_operation_t operation;
  tl_op_t op;         /* for allreduce, reducescatter, reduce and push */
  int root;           /* for broadcast, reduce, gather, scatter, push and pull: rank */
  uint32_t position;  /* in the forward pass: 0 is needed first */
  uint32_t positions; /* how many positions there are; 0: number of tensors in the group */
  float urgency;      /* [0, 1] overrides layer order; negative: layer order, 1 - position / positions */
  uint64_t row;       /* for reducescatter: elements of one row; divides count */
  tl_pattern_t pattern;
  uint32_t reserved;  /* 0 */
  tl_memory_t memory; /* of `buffer`, which is given then. Ranks may differ in it */
  uint32_t reserved2; /* 0 */
} tl_tensor_desc_t;
#define TL_TENSOR_INIT                                                                                                \
  {                                                                                                                   \
    sizeof(tl_tensor_desc_t), NULL, NULL, 0, TL_FLOAT32, TL_ALLREDUCE, TL_SUM, 0, 0, 0, -1, 1, TL_PATTERN_DEFAULT, 0, \
        TL_MEMORY_HOST, 0                                                                                             \
  }

/* Registers tensors together; collective: returns when every rank has registered a group of this name. `tensors`
 * receives `count` handles, which stay until tl_unregister() or tl_finalize(): register what is used again and again.
 * The name of a group is unique in the job, too. Errors: mismatch (names both ranks, the tensor and the two values, or
 * the tensor that one rank leaves out), invalid argument, already exists (a group or a tensor of this name is
 * registered), resource exhausted (memory, or a limit of the daemon: the text names its key), timed out (names the
 * ranks that have not come), aborted. */
TL_API tl_status_t tl_register(tl_context_t* context, const char* group, const tl_tensor_desc_t* descs, size_t count,
                               tl_tensor_t** tensors);
/* Takes a group of tl_register() back, all of its tensors; collective: returns when every rank has unregistered it.
 * Ranks may unregister different groups in different orders, from different threads. Afterwards the group's name and
 * its tensors' names may be registered anew, with other tensors of other shapes, and its share of the quotas of tensors
 * is free. The handles must not be used any more: the library refuses the last 4,096 of them by name, others may be
 * anything.
 *
 * Memory: buffers that the library has allocated are gone, others may be freed with tl_free(). Both stay this process's
 * shared memory, which counts against the user's memory_limit: its next tl_alloc() and registrations use it, and the
 * daemon gets it back from tl_finalize() or the end of the process. The daemons keep the tables of the tensors' places,
 * which the job's next tensors use.
 *
 * Of an array call the group is "operation.name" ("allreduce.x", "pull.k"): its next call is a first one again. A key's
 * pull is unregistered before its push.
 *
 * Errors, after which this rank's tensors are as they were and may be used: not found (no such group here); invalid
 * argument (the text names a tensor whose request is not done and waited for here, or another thread is at it: the
 * other ranks do not hear of it, and time out); mismatch (ranks have done different numbers of operations: both are
 * named); timed out (the text names the ranks that have not unregistered the group; a later call begins anew); aborted
 * (a rank has left the job without it, or the job's error: a rank that ends without tl_finalize() ends the job).
 * Mismatch, timed out and aborted are said to every rank that waits: none has unregistered the group then. Only where
 * the daemon does not say anything, timed out says so, and the tensors cannot be used: whether they are gone is open,
 * and the next call goes on waiting. A group that ranks share on their GPUs (tl_gpu_alloc()) goes in parts: after
 * mismatch or timed out it cannot be used any more, and another call of all ranks goes on. */
TL_API tl_status_t tl_unregister(tl_context_t* context, const char* group);
/* The tensor's buffer: the description's, or the one that tl_register has allocated. Valid until tl_unregister() or
 * tl_finalize(). Null for null, and for a tensor that was unregistered, if it is among the last 4,096 of them. */
TL_API void* tl_tensor_buffer(const tl_tensor_t* tensor);

/* Starts the tensor's operation on its buffer (in GPU memory: see tl_post_on()). The buffer belongs to tensorlane until
 * the request is done. Never blocks. One operation per tensor may be under way; errors: invalid argument (one is),
 * aborted. */
TL_API tl_status_t tl_post(tl_tensor_t* tensor, tl_request_t** request);
/* Starts `count` tensors of one context as tl_post() does, in this order, for the cost of one call. `requests` receives
 * as many handles. All or none: after an error nothing was started. Errors: as tl_post (the text names the tensor),
 * resource exhausted. */
TL_API tl_status_t tl_post_many(tl_tensor_t* const* tensors, size_t count, tl_request_t** requests);
/* As tl_post_many(), for tensors in GPU memory: when `stream` has done what it was given so far. (tl_post() and
 * tl_post_many() mean the default stream.) A tensor may be posted again while its operation is under way, if
 * tl_stream_wait() was called for that. Errors: as tl_post_many(), invalid argument (a CUDA graph is captured on the
 * stream, or a buffer is none of a GPU's), unavailable (no driver, or what the driver says). */
TL_API tl_status_t tl_post_on(tl_tensor_t* const* tensors, size_t count, void* stream, tl_request_t** requests);
/* Lets `stream` wait for the results of `count` requests on GPU memory, in place of the calling thread: what the stream
 * is given from now on finds them. The requests are gone (null in `requests`, where null ones are left out) unless an
 * error is returned; then those that are not null are as they were.
 *
 * An operation that fails later stops no stream: its result is then filled with bytes of 0xff, which is NaN in every
 * floating-point type, before the stream goes on, and the next call of this context that begins an
 * operation, whichever thread makes it, says why. Only `stream` waits: another one, and the CPU, need an event of it.
 * Where the driver cannot make streams wait, or with CUDA_DEVICE_MAX_CONNECTIONS=1, which could make our copies wait
 * behind the waiting stream, or with TENSORLANE_STREAM_WAIT=0, the calling thread waits in the stream's place
 * (tl_gpu_status() says so). Errors: those of operations that have failed; invalid argument (a request of host memory,
 * a push or a pull, one with a callback, or a stream that captures a CUDA graph); unavailable (what the driver says).
 */
TL_API tl_status_t tl_stream_wait(tl_request_t** requests, size_t count, void* stream);
/* What the library uses GPUs for, as JSON: the driver, the devices with their way to the daemon and why, copied and
 * pinned bytes, and of each group that the ranks of hosts could share whether they do, and why not. The text belongs to
 * the context until the next call. */
TL_API tl_status_t tl_gpu_status(tl_context_t* context, const char** json);
/* TL_OK: done, the result is in place, the request is freed. TL_IN_PROGRESS: not yet. An error: it failed and the
 * request is freed; its buffer is the program's again, with anything in it. The library has cut the daemon off from it,
 * which costs as much memory as the buffers under way have; without that memory the text says that they must not be
 * used again. */
TL_API tl_status_t tl_test(tl_request_t* request);
/* Waits; a negative time-out waits as long as the job lives. What it waits for becomes more urgent. TL_ERROR_TIMED_OUT
 * leaves the request valid; an operation that failed because somebody was not heard in time says TL_ERROR_ABORTED, and
 * tl_last_error() why. */
TL_API tl_status_t tl_wait(tl_request_t* request, double timeout_seconds);
/* Waits for `count` requests as tl_wait() does for one, `timeout_seconds` for all of them together; null requests are
 * left out. Each that is done or has failed becomes null in `requests`; the others are still under way, and valid.
 * Returns the first error of those that have failed, in this order, else TL_ERROR_TIMED_OUT while any is under way. */
TL_API tl_status_t tl_wait_many(tl_request_t** requests, size_t count, double timeout_seconds);
/* `function` runs once when the request is done, on a thread of the library (at once, if it is done already); the
 * request is freed after it: do neither test nor wait. It must not block. When `status` is an error, tl_last_error()
 * says why, until `function` returns. */
typedef void (*tl_callback_t)(tl_status_t status, void* argument);
TL_API tl_status_t tl_set_callback(tl_request_t* request, tl_callback_t function, void* argument);

/* Per call; null means all defaults. */
typedef struct {
  size_t size;       /* set by TL_OPTIONS_INIT */
  float urgency;     /* [0, 1]; negative: as the fabric file of rank 0's host says (urgencies), else 0.5 */
  uint32_t reserved; /* ignored */
  uint32_t queued; /* not 0: while an operation of this name is under way, this one waits for its turn. Without it such
                      a call is refused. The library keeps a copy of `in` meanwhile, but of GPU memory */
  uint32_t reserved2; /* ignored */
  void* stream;       /* for GPU memory: the stream that `in` comes from and `out` may be used on */
  tl_memory_t memory; /* of `in` and `out`; the same in all calls of a name */
  uint32_t reserved3; /* ignored */
} tl_options_t;
#define TL_OPTIONS_INIT \
  { sizeof(tl_options_t), -1.0f, 0, 0, 0, NULL, TL_MEMORY_HOST, 0 }

/* Array calls: any memory, by name. The first call of a name registers it (collectively); every later call of the name
 * must agree with the first. Memory that is not shared is copied in at once and copied out when the request is done:
 * `out` stays valid until then, `in` only until the call returns. Shared memory (64-byte aligned) on which the first
 * call of a name works in place (in == out; allgather: in is this rank's part of out; reducescatter: out is this rank's
 * part of in) is used without a copy, and later calls of the name must pass the same buffer; once it is freed, any
 * memory is copied again. No call waits for other ranks: where ranks disagree about a name, the request fails, and the
 * name is free again. Requests of one name that are queued (tl_options_t) are done in the order of their calls, which
 * is the same on all ranks; to wait for them in another order is allowed. With TL_MEMORY_CUDA both buffers are GPU
 * memory, of one GPU, and what tl_memory_t says of order and ownership holds. Names belong to their operation ("x" of
 * tl_allreduce is not "x" of tl_broadcast) and have at most 240 bytes. Errors: as tl_post, invalid argument (names both
 * values). */
TL_API tl_status_t tl_allreduce(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                                tl_dtype_t dtype, tl_op_t op, const tl_options_t* options, tl_request_t** request);
TL_API tl_status_t tl_broadcast(tl_context_t* context, const char* name, void* buffer, uint64_t count, tl_dtype_t dtype,
                                int root, const tl_options_t* options, tl_request_t** request);
/* `in` has `count` elements, `out` count * world size, by rank. */
TL_API tl_status_t tl_allgather(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                                tl_dtype_t dtype, const tl_options_t* options, tl_request_t** request);
/* `in` has `rows` rows of `row` elements, cut between rows (of a tensor, along its first dimension): each of n ranks
 * gets rows / n of them reduced, and each of the first rows % n ranks one more, in the order of ranks. `out` has room
 * for this rank's; it may be null where they are none. */
TL_API tl_status_t tl_reducescatter(tl_context_t* context, const char* name, const void* in, void* out, uint64_t rows,
                                    uint64_t row, tl_dtype_t dtype, tl_op_t op, const tl_options_t* options,
                                    tl_request_t** request);
/* The root gets the reduced values in `out`, which is not used elsewhere and may be null there. */
TL_API tl_status_t tl_reduce(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                             tl_dtype_t dtype, tl_op_t op, int root, const tl_options_t* options,
                             tl_request_t** request);
/* `in` has `count` elements. On the root `out` has `count` * world size, by rank; it is not used elsewhere and may be
 * null there. */
TL_API tl_status_t tl_gather(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                             tl_dtype_t dtype, int root, const tl_options_t* options, tl_request_t** request);
/* On the root `in` has `count` * world size elements, by rank; it is not used elsewhere and may be null there. `out`
 * has `count`. */
TL_API tl_status_t tl_scatter(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                              tl_dtype_t dtype, int root, const tl_options_t* options, tl_request_t** request);
/* `in` and `out` have `count` * world size elements: `count` for each rank, and `count` from each. */
TL_API tl_status_t tl_alltoall(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                               tl_dtype_t dtype, const tl_options_t* options, tl_request_t** request);
/* Messages: any memory, from one rank to another of the job, or to itself. A send and a receive meet if source,
 * destination and tag are the same; those that could meet do so in the order of their calls. A send is done when its
 * receive has been called and the bytes have left; `buffer` may be used again when tl_send returns, or, of shared
 * memory (tl_alloc), which is not copied, when the request is done. A receive's `buffer` is the program's when the
 * request is done. Count and dtype are the same at both ends, else both requests fail and name both values. Where
 * `source` is TL_ANY_SOURCE the receive takes the message that was announced first. `from`, unless null, gets the
 * source when the request is done, and stays valid until then. No call waits for another rank. A rank has at most 1024
 * messages under way, and from one host to another at most 1024 wait for their receives: what is sent beyond that waits
 * for them. Of the options urgency counts, by default 0.9: somebody waits for it; `queued` does not; memory is host
 * memory. Errors: as tl_post, invalid argument, resource exhausted; of the request also mismatch. */
#define TL_ANY_SOURCE (-1)
TL_API tl_status_t tl_send(tl_context_t* context, int destination, uint64_t tag, const void* buffer, uint64_t count,
                           tl_dtype_t dtype, const tl_options_t* options, tl_request_t** request);
TL_API tl_status_t tl_recv(tl_context_t* context, int source, uint64_t tag, void* buffer, uint64_t count,
                           tl_dtype_t dtype, int* from, const tl_options_t* options, tl_request_t** request);
/* An all-to-all with parts of any sizes, by messages: `in` has in_counts[r] elements for each rank r, one part behind
 * the other in the order of ranks, and `out` gets out_counts[r] from it. This rank's own part is copied at once, so the
 * two do not overlap. All ranks call it in the same order with one tag, which no message of the program has.
 * out_counts[r] is what rank r has in its in_counts for this rank, else the two messages fail as above. `requests` has
 * room for twice the world size: a request for each message, null where there is none; tl_wait_many() waits for them.
 * After an error, but of a missing context or place, it has those that had begun; their tag must not be used again, and
 * the other ranks wait for the rest. Memory and limits are those of messages, so that there are at most 513 ranks.
 * Errors: as tl_send; invalid argument: this rank's two counts of itself differ. */
TL_API tl_status_t tl_alltoallv(tl_context_t* context, uint64_t tag, const void* in, const uint64_t* in_counts,
                                void* out, const uint64_t* out_counts, tl_dtype_t dtype, const tl_options_t* options,
                                tl_request_t** requests);
/* A store of named values, which the hosts share out. A push reduces the ranks' `in` to the key's new value; a pull
 * brings the value of the last push into `out`. Both are collective: every rank makes the same calls of a key in the
 * same order, each when its request of the one before is done. Between keys there is no order: ranks may push all keys
 * before they pull any, and start them in orders of their own, if they wait for none before all are started.
 * Who may touch what: `in` is copied before tl_push returns; `out` is the program's again when the pull's request is
 * done. When a request is done: a push's, when this host's contribution has left it and the part of the value that this
 * host keeps is reduced. That may take until every rank has pushed, but says nothing about the other hosts' parts. A
 * pull's, when `out` has the value of every rank's last push, and this host's part has left for the others; that may
 * take until every rank has pulled. So a rank that waits for one key at a time keeps to the others' order.
 * Errors: as for other array calls; invalid argument: a pull before the first push, while the key's last request is not
 * done, or of another count or dtype than was pushed. */
TL_API tl_status_t tl_push(tl_context_t* context, const char* key, const void* in, uint64_t count, tl_dtype_t dtype,
                           tl_op_t op, const tl_options_t* options, tl_request_t** request);
TL_API tl_status_t tl_pull(tl_context_t* context, const char* key, void* out, uint64_t count, tl_dtype_t dtype,
                           const tl_options_t* options, tl_request_t** request);
/* Returns when every rank has called it. After TL_ERROR_TIMED_OUT the next call goes on waiting for the same barrier.
 */
TL_API tl_status_t tl_barrier(tl_context_t* context, double timeout_seconds);

#ifdef __cplusplus
}
#endif
#endif
