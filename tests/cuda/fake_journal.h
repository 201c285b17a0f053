// What tests see of the fake driver's past, and the faults that they plan: calls, violations and copies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <sstream>
#include <string>
#include <vector>

#include "fake_calls.h"
#include "fake_driver.h"

namespace tensorlane::fake_cuda {

// One thread at a time.
class Journal {
 public:
  // Everything but whether violations are printed.
  void clear();
  // Counts the call. Returns the error that a test wants of it, or 0.
  int count_call(Call call) { return next(calls_[index(call)]); }
  // Counts what the call puts on a stream. Returns the error that a test wants when it runs, or 0.
  int count_put(Call call) { return next(puts_[index(call)]); }
  void fail(Call call, std::uint64_t n, int error) { plan(calls_[index(call)], n, error); }
  void fail_async(Call call, std::uint64_t n, int error) { plan(puts_[index(call)], n, error); }
  std::uint64_t calls(Call call) const { return calls_[index(call)].count; }

  // The parts of the text are joined; addresses are written in hexadecimal.
  template <typename... Parts>
  void violate(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    record(text.str());
  }
  std::size_t violations() const { return violations_; }
  // Null: it is not kept.
  const char* violation(std::size_t index) const;
  // To stderr, from now on.
  void print_violations() { prints_ = true; }

  // Returns where the copy is in the log.
  std::size_t put(FakeCudaCopy copy);
  void began(std::size_t place);
  void failed(std::size_t place);
  void ended(std::size_t place, int direction);
  const std::vector<FakeCudaCopy>& copies() const { return copies_; }
  std::uint64_t most_in_flight(int direction) const { return in_flight_[direction].most; }

 private:
  struct Planned {
    std::uint64_t count;  // of the call that fails
    int error;
  };
  struct Counter {
    std::uint64_t count = 0;
    std::vector<Planned> planned;
  };
  struct InFlight {
    std::uint64_t now = 0, most = 0;
  };
  using Counters = std::array<Counter, static_cast<std::size_t>(Call::kCount)>;

  static std::size_t index(Call call) { return static_cast<std::size_t>(call); }
  static int next(Counter& counter);
  static void plan(Counter& counter, std::uint64_t n, int error) {
    counter.planned.push_back({counter.count + n, error});
  }
  void record(const std::string& text);

  Counters calls_, puts_;
  bool prints_ = false;
  std::size_t violations_ = 0;
  std::deque<std::string> texts_;  // the first ones
  std::uint64_t moment_ = 0;
  std::vector<FakeCudaCopy> copies_;  // the first ones
  std::array<InFlight, kFakeCudaKernel + 1> in_flight_;
};

}  // namespace tensorlane::fake_cuda
