// Memory of the daemon's own in which a job's sums and contributions lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/ledger.h"
#include "common/base/status.h"

namespace tensorlane::ports {

// Private to the daemon, zeroed, on whole pages. Given back when the object goes, which takes a moment for each
// gigabyte: not on a lane.
class Scratch {
 public:
  virtual ~Scratch() = default;
  // Valid as long as the object.
  virtual std::span<std::byte> bytes() const = 0;
  // Takes up to `most` more bytes of it from the host, so that no access waits for a page later. True once all of it is
  // there. Error: kResourceExhausted, when the host has no memory left. One thread at a time.
  virtual Result<bool> populate(std::uint64_t most) = 0;
};

// Any thread.
class ScratchPool {
 public:
  virtual ~ScratchPool() = default;
  // Charges the owner and reserves the addresses; populate() takes the memory. `bytes` is more than zero. Errors:
  // kResourceExhausted, with the limit, its value and the need.
  virtual Result<std::unique_ptr<Scratch>> make(const Owner& owner, std::uint64_t bytes) = 0;
  // Charges memory that is taken elsewhere, as that of tables. Errors as make().
  virtual Result<Ledger::Charge> charge(const Owner& owner, std::uint64_t bytes) = 0;
  // Whether charge() would succeed now.
  virtual Status check(const Owner& owner, std::uint64_t bytes) const = 0;
};

}  // namespace tensorlane::ports
