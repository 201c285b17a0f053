// Names of the C interface for calls that have none.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensorlane/tensorlane.h"

namespace tensorlane::torch_backend {

// What all calls of one name have in common.
struct Kind {
  tl_operation_t operation = TL_ALLREDUCE;
  std::uint64_t count = 0;  // of the C interface's call: elements, and of a reduce-scatter rows
  tl_dtype_t dtype = TL_FLOAT32;
  tl_op_t op = TL_SUM;
  int root = 0;
  std::uint64_t row = 1;
  auto operator<=>(const Kind&) const = default;
};

// A name is a tensor that all ranks register. Calls that are alike share a few names, in turns; a call whose turn has
// come waits for the one that had the name before (tl_options_t.queued). Which name a call gets depends on the order of
// the group's calls alone, so that all ranks give it the same one. Kinds are numbered: where ranks differ in a kind,
// the same name is registered in two ways, which the daemon refuses by naming both ranks and both values.
//
// Bounded: at most kMostKinds, and kMostBytes of buffers as long as there is more than one kind. The kind that was used
// the longest time ago goes, on all ranks at the same call; when it comes again it has another number.
//
// One thread at a time.
class Names {
 public:
  // All names begin with `prefix`.
  explicit Names(std::string prefix) : prefix_(std::move(prefix)) {}

  static constexpr std::size_t kMostKinds = 256;
  static constexpr std::uint64_t kMostBytes = 1ULL << 30;
  static constexpr std::uint64_t kMostNames = 4, kMostBytesOfKind = 64ULL << 20;

  struct Turn {
    std::string name;
    std::vector<std::string> old;  // "operation.name", to be unregistered when they are done with
  };
  // `bytes`: of the buffer of one such call.
  Turn next(const Kind& kind, std::uint64_t bytes);

 private:
  struct OfKind {
    std::uint64_t number = 0, calls = 0, last = 0, bytes = 0;
    std::uint64_t most = 1, made = 0;
  };
  std::string name_of(std::uint64_t number, std::uint64_t turn) const;
  void drop_oldest(std::vector<std::string>& old);

  const std::string prefix_;
  std::map<Kind, OfKind> kinds_;
  std::uint64_t calls_ = 0, numbers_ = 0, bytes_ = 0;
};

}  // namespace tensorlane::torch_backend
