// The protection domain of one job and the memory registered in it.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/rdma/device.h"

namespace tensorlane::rdma {

// An owned registration.
struct DeregisterMemory {
  void operator()(ibv_mr* mr) const { ibv_dereg_mr(mr); }
};
using MemoryRegion = std::unique_ptr<ibv_mr, DeregisterMemory>;

// Queue pairs hold it, so it outlives them: a key of one job opens no memory of another. One thread.
class Registrations {
 public:
  // `device` outlives it. Errors: kResourceExhausted.
  static Result<std::shared_ptr<Registrations>> create(Device& device);
  ~Registrations();
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;

  ibv_pd* domain() const { return domain_; }

  // Registers memory that peers may write into, once: what lies inside a known piece is there already. Where the device
  // cannot pin (and says that it pages on demand), it pages on demand. Errors: kResourceExhausted.
  Status map(std::span<std::byte> bytes);
  // Device memory behind a dmabuf, known by the address that its owner uses for it. Errors: those of dmabuf_failed().
  Status map(const ports::DeviceMemory& memory);
  // Registers memory that only this end reads and writes.
  Result<MemoryRegion> map_private(std::span<std::byte> bytes);
  // The registration that holds all of `bytes`, or null. The data path: a look at a few entries, the last one found
  // first.
  const ibv_mr* find(std::span<const std::byte> bytes) const;
  // Deregisters this piece, which map() was given as it is.
  void unmap(std::span<std::byte> bytes);
  // Deregisters everything that map() registered.
  void clear();

 private:
  struct Piece {
    const std::byte* begin;
    std::size_t length;
    MemoryRegion region;
  };
  Registrations(Device& device, ibv_pd* domain) : device_(device), domain_(domain) {}

  Device& device_;
  ibv_pd* domain_;
  std::vector<Piece> pieces_;
  mutable std::size_t last_ = 0;
};

}  // namespace tensorlane::rdma
