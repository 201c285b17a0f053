/* nccl.h: whether NCCL, as this process finds it, sends its communicators in the classes of the fabric.
 *
 * Nothing here touches NCCL itself, which need not be there. `tensorlane doctor --nccl` says the same of any process.
 */
#ifndef TENSORLANE_NCCL_H
#define TENSORLANE_NCCL_H

#include <tensorlane/tensorlane.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A class of the fabric, as `tensorlane classes --for nccl` prints it. */
typedef struct {
  const char* name;
  unsigned traffic_class;
  unsigned service_level;
} tl_nccl_class_t;

typedef struct {
  size_t size;                    /* sizeof(tl_nccl_subject_t) */
  const tl_nccl_class_t* classes; /* all that traffic may have; none: values are not compared */
  size_t class_count;
  /* Variables that the env plugin sets where it is loaded: names, and their values; a null value: it is not set. */
  const char* const* overridden;
  const char* const* values;
  size_t overridden_count;
  int service_level; /* what NCCL_IB_SL is to be; negative: not said */
  int version;       /* NCCL_VERSION_CODE, 22807 for 2.28.7; 0: not known */
} tl_nccl_subject_t;

/* Called for each finding, on the calling thread; the texts live until it returns. `rule` is N1 to N8, which
 * docs/nccl.md explains; `severity` 0: the classes do not act, 1: they act otherwise than the fabric file
 * says, 2: for information. */
typedef void (*tl_nccl_finding_t)(const char* rule, int severity, const char* place, const char* message,
                                  const char* fix, void* argument);

/* Looks at the environment of this process, the files that NCCL reads, and the RDMA devices. Any thread. Errors:
 * invalid argument (a null pointer where there must be one, a size of another version), resource exhausted (memory).
 * `function` must not throw. What `subject` points to is the caller's, and not kept. */
TL_API tl_status_t tl_nccl_preflight(const tl_nccl_subject_t* subject, tl_nccl_finding_t function, void* argument);

#ifdef __cplusplus
}
#endif

#endif
