// The ports of a set of daemons and ranks on this machine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/base/status.h"

namespace tensorlane::cli {

// While this object lives, nobody on this machine who asks here gets the same block, of whatever user: two commands
// that start at the same moment have different ones. The kernel ends the claim with the process. No command that is
// started inherits it.
class RunPorts {
 public:
  static constexpr std::uint16_t kBlock = 100;  // blocks that are so far apart share no port

  // The block from `first` on, whose owner says so; 0: the first from 7100 on that nobody has claimed or listens in.
  // `lab`: whose hosts the ports are of, each with its network to itself; empty: this machine's loopback. Errors:
  // kAlreadyExists (another command has this block), kUnavailable (no block is free), kInvalidArgument.
  static Result<RunPorts> claim(std::uint16_t first, const std::string& lab);
  RunPorts() = default;
  ~RunPorts();
  RunPorts(RunPorts&& other) noexcept : first_(other.first_), claim_(std::exchange(other.claim_, -1)) {}
  RunPorts& operator=(RunPorts&& other) noexcept {
    std::swap(first_, other.first_);
    std::swap(claim_, other.claim_);
    return *this;
  }

  // Of each daemon; the data listeners begin 10 after it (LocalFabric).
  std::uint16_t control() const { return first_; }
  std::uint16_t metrics() const { return static_cast<std::uint16_t>(first_ + 1); }
  // MASTER_PORT, for torch's own rendezvous.
  std::uint16_t master() const { return static_cast<std::uint16_t>(first_ + 2); }

 private:
  RunPorts(std::uint16_t first, int claim) : first_(first), claim_(claim) {}

  std::uint16_t first_ = 0;
  int claim_ = -1;
};

}  // namespace tensorlane::cli
