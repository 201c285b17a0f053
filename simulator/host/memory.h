// Real bytes behind descriptors, with canaries around every region that is allocated here. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/base/descriptor.h"
#include "daemon/ports/memory.h"
#include "daemon/ports/scratch.h"

namespace tensorlane::simulator {

class SimMemory final : public ports::Memory, public ports::ScratchPool {
 public:
  // A region of zeros of its own, for something of this user.
  Descriptor allocate(std::uint64_t bytes, std::uint32_t user = 0);
  // This user gets so many more scratches and entries of the table, and then none.
  void refuse(std::uint32_t user, std::uint64_t after) { refusals_[user] = {after, false}; }
  // Whether it has asked for more.
  bool has_refused(std::uint32_t user) const;
  // As ports::Memory says. A descriptor that leaves its region resolves to nothing.
  std::span<std::byte> resolve(const Descriptor& descriptor) override;
  Descriptor add(std::span<std::byte> bytes) override;
  void remove(std::uint32_t region) override;

  // As ports::ScratchPool says; nobody is charged, and there is enough but for who is refused.
  Result<std::unique_ptr<ports::Scratch>> make(const Owner& owner, std::uint64_t bytes) override;
  Result<Ledger::Charge> charge(const Owner&, std::uint64_t) override { return Ledger::Charge(); }
  Status check(const Owner&, std::uint64_t) const override { return {}; }

  // Entries of the table that name memory of this user, but for the user's own: what a host has not given back.
  std::size_t held(std::uint32_t user) const;
  // Whether one of them names memory of the region that was allocated here.
  bool names(const Descriptor& allocated) const;
  // The first region whose canary was overwritten, or -1.
  int broken_canary() const;

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kCanary{0xc5};
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  struct Region {
    std::unique_ptr<std::byte, Free> own;  // guard, bytes, guard; null for memory of somebody else
    std::span<std::byte> bytes;
    std::uint32_t generation = 1;
    bool live = false;
  };
  struct Owned {
    const std::byte* end = nullptr;
    std::uint32_t user = 0;
  };
  struct Refusal {
    std::uint64_t left = 0;
    bool asked = false;
  };
  Descriptor enter(std::span<std::byte> bytes);
  const Owned* owner_of(std::span<const std::byte> bytes) const;
  bool refuses(std::uint32_t user);
  std::vector<Region> regions_;
  std::map<const std::byte*, Owned> owned_;    // by where it begins
  std::map<std::uint32_t, Refusal> refusals_;  // by user
};

}  // namespace tensorlane::simulator
