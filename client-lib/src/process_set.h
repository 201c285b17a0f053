// Some ranks of a job, or all of them: whose operations a handle of the C interface begins.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::client {

struct Settings;

// This process is one of its ranks, which are counted from 0 in it. Does not change; what is registered for it shares
// it.
class ProcessSet {
 public:
  // All ranks of the job.
  explicit ProcessSet(const Settings& settings);
  // Those of `config`, which are ranks of `settings`' job. Errors: invalid argument (names the field and its value).
  static Result<std::shared_ptr<const ProcessSet>> make(const tl_process_set_config_t& config,
                                                        const Settings& settings);

  // Ranks of a set, for what the library does for all of it: all of them, those of a host, or one of each host. Such a
  // set has no number that a program could use. `ranks`, of `set`, are ascending, this process's among them.
  enum class Part : std::uint8_t { kAll, kHost, kAcross };
  static std::shared_ptr<const ProcessSet> part(const ProcessSet& set, std::span<const std::uint32_t> ranks, Part part,
                                                const Settings& settings);
  // Whether it is `set`, or a part of it.
  bool is_of(const ProcessSet& set) const { return this == &set || (is_part() && whole_ == set.number_); }
  bool is_part() const { return number_ > kNoNumber; }
  bool is_of_host() const { return is_part() && part_ == Part::kHost; }

  // 0 of all ranks. Else no other set that has a rank in common with it has it.
  std::uint32_t number() const { return number_; }
  // Of the job, ascending; none of all ranks.
  const std::vector<std::uint32_t>& ranks() const { return ranks_; }
  std::uint32_t rank_in_job(std::uint32_t rank) const { return ranks_.empty() ? rank : ranks_[rank]; }
  // Of one of its ranks.
  std::uint32_t rank_in_set(std::uint32_t rank_in_job) const;

  // What the job calls a group or a tensor that the program has given a name.
  std::string in_job(const std::string& name) const { return prefix_ + name; }
  // The part of such a name that the program has given.
  std::string in_set(const std::string& name) const { return name.substr(prefix_.size()); }
  // "job 'digits'", "process set 3 (ranks 0, 2) of job 'digits'": for messages.
  const std::string& text() const { return text_; }

  std::uint32_t rank = 0, world_size = 1;  // of this process, and ranks of the set
  std::uint32_t local_rank = 0, local_world_size = 1;

 private:
  static constexpr std::uint32_t kNoNumber = (1u << 24) - 1;  // a program's are no higher (tensorlane.h)

  ProcessSet() = default;

  std::uint32_t number_ = 0;
  Part part_{};  // of a part: which, and the number of its set
  std::uint32_t whole_ = 0;
  std::vector<std::uint32_t> ranks_;
  std::string prefix_, text_;
};

using SharedSet = std::shared_ptr<const ProcessSet>;

}  // namespace tensorlane::client
