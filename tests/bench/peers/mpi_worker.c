/* Worker of `tensorlane bench` for an MPI library; compiled once for each. Started by its mpirun: mpi_worker SOCKET */
#include <mpi.h>
#include <stdlib.h>

#include "tests/bench/peers/bench_worker.h"

typedef struct {
  float* memory;
  size_t bytes;
  const char* error;
} mpi_t;

static float* buffer(void* self, size_t bytes) {
  mpi_t* mpi = self;
  if (mpi->bytes >= bytes) return mpi->memory;
  free(mpi->memory);
  mpi->memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  mpi->bytes = mpi->memory == NULL ? 0 : bytes;
  mpi->error = "out of memory";
  return mpi->memory;
}

static int barrier(void* self) {
  ((mpi_t*)self)->error = "MPI_Barrier";
  return MPI_Barrier(MPI_COMM_WORLD) != MPI_SUCCESS;
}

static int allreduce(void* self, float* memory, size_t count) {
  ((mpi_t*)self)->error = "MPI_Allreduce";
  return MPI_Allreduce(MPI_IN_PLACE, memory, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS;
}

static const char* error(void* self) {
  return ((mpi_t*)self)->error;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  mpi_t mpi = {0};
  const bench_operations_t operations = {&mpi, buffer, barrier, allreduce, error};
  int status = argc == 2 ? bench_serve(argv[1], rank, ranks, &operations) : 2;
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  free(mpi.memory);
  return status;
}
