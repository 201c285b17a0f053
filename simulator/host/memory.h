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
  // As ports::Memory says. A descriptor that leaves its region resolves to nothing.
  std::span<std::byte> resolve(const Descriptor& descriptor) override;
  Descriptor add(std::span<std::byte> bytes) override;
  void remove(std::uint32_t region) override;

  // As ports::ScratchPool says; nobody is charged, and there is always enough.
  Result<std::unique_ptr<ports::Scratch>> make(const Owner& owner, std::uint64_t bytes) override;
  Result<Ledger::Charge> charge(const Owner&, std::uint64_t) override { return Ledger::Charge(); }
  Status check(const Owner&, std::uint64_t) const override { return {}; }

  // Entries of the table that name memory of this user, but for the user's own: what a host has not given back.
  std::size_t held(std::uint32_t user) const;
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
  std::vector<Region> regions_;
  std::map<const std::byte*, Owned> owned_;  // by where it begins
};

}  // namespace tensorlane::simulator
