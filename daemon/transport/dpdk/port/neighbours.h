// Which MAC addresses the hosts of the local network have. An entry exists for an address that this host sends to, and
// for no other, so what strangers send makes no entries. An answer counts while its question is open.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "common/base/token_bucket.h"
#include "common/base/units.h"
#include "daemon/transport/dpdk/port/address.h"

namespace tensorlane::dpdk {

// One owner thread. Allocates in want() and add_static() only.
class Neighbours {
 public:
  struct Limits {
    std::uint32_t entries = 4096;
    std::uint32_t questions_per_second = 500;
  };
  using Index = std::uint32_t;

  explicit Neighbours(const Limits& limits);

  // An entry that no answer changes, for good. The address has none yet.
  void add_static(const IpAddress& address, const MacAddress& mac);
  // The entry of an address, which is made if there is none; as many release() as want(). Error: kResourceExhausted.
  Result<Index> want(const IpAddress& address);
  void release(Index index);

  // Null while it is not known. Valid until release().
  const MacAddress* mac(Index index) const {
    const Entry& entry = entries_[index];
    return entry.known ? &entry.mac : nullptr;
  }
  // Somebody says that the address has this MAC address. False: nobody has asked, or the answer is too late, or the
  // entry is static; nothing has changed.
  bool confirm(Time now, const IpAddress& address, const MacAddress& mac);

  struct Question {
    IpAddress subject;
    std::optional<MacAddress> at;  // only this one is asked
  };
  // What is to be asked now. Unknown addresses are asked for again after 100 ms, then ever more rarely, at least every
  // 5 s. A known one is asked again 30 s after its last answer: three times itself, then everybody. Looks at a bounded
  // number of entries, and says nothing beyond the rate of questions.
  std::optional<Question> next_question(Time now);

  std::size_t size() const { return by_address_.size(); }

 private:
  struct Entry {
    IpAddress address;
    MacAddress mac{};
    std::uint32_t users = 0;  // 0: the entry is free, unless it is static
    bool is_static = false, known = false;
    bool open = false;       // asked, and not answered yet
    std::uint8_t asked = 0;  // questions since the last answer
    Time asked_at, next;     // of the last question; when the next one is due
  };

  Limits limits_;
  TokenBucket rate_;
  std::vector<Entry> entries_;
  std::vector<Index> free_;
  std::unordered_map<IpAddress, Index> by_address_;
  std::size_t at_ = 0, looked_ = 0;  // the round through the entries
  Time next_round_{};
};

}  // namespace tensorlane::dpdk
