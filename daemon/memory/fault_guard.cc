#include "daemon/memory/fault_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <vector>

#include "common/base/assert.h"

namespace tensorlane::memory {
namespace {

// One guarded mapping. The handler reads it without a lock: `version` is odd while the entry changes, and a reader that
// sees it change looks away, since the mapping in which a thread faults does not change while the thread uses it.
struct Slot {
  std::atomic<std::uint64_t> version{0};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> faulted{false};
};

std::array<Slot, FaultGuard::kMaxGuards> slots;
std::atomic<std::size_t> slots_used{0};  // slots from here on were never used
std::uintptr_t page_mask = 0;
struct sigaction previous_action;

struct Registry {
  std::mutex mutex;
  std::vector<std::size_t> free;
  bool installed = false;
};
Registry& registry() {
  static Registry* the = new Registry;  // never destroyed: guards may outlive static objects
  return *the;
}

Slot* find_slot(std::uintptr_t address) {
  const std::size_t used = slots_used.load();
  for (std::size_t i = 0; i < used; ++i) {
    Slot& slot = slots[i];
    const std::uint64_t version = slot.version.load();
    if (version % 2 != 0) continue;
    const bool inside = address >= slot.begin.load() && address < slot.end.load();
    if (inside && slot.version.load() == version) return &slot;
  }
  return nullptr;
}

// Async-signal-safe: atomics, mmap and sigaction only.
void on_sigbus(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  // A signal that somebody sent carries no address.
  Slot* slot = info->si_code > 0 ? find_slot(address) : nullptr;
  if (slot != nullptr) {
    void* page = reinterpret_cast<void*>(address & page_mask);
    const std::size_t page_bytes = ~page_mask + 1;
    if (mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_ANONYMOUS | MAP_PRIVATE, -1, 0) != MAP_FAILED) {
      slot->faulted.store(true);
      errno = saved_errno;
      return;
    }
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else {
    // The access runs again on return and meets the default action. A signal that was sent must be sent again.
    sigaction(SIGBUS, &previous_action, nullptr);
    if (info->si_code <= 0) raise(signal);
  }
  errno = saved_errno;
}

void install_handler() {
  page_mask = ~(static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
  struct sigaction action {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  TL_ASSERT(sigaction(SIGBUS, &action, &previous_action) == 0);
}

}  // namespace

std::unique_ptr<FaultGuard> FaultGuard::make(std::span<std::byte> mapping) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (!r.installed) {
    install_handler();
    r.installed = true;
  }
  std::size_t index = slots_used.load();
  if (!r.free.empty()) {
    index = r.free.back();
    r.free.pop_back();
  } else if (index < kMaxGuards) {
    slots_used.store(index + 1);
  } else {
    return nullptr;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping.data());
  TL_ASSERT((begin & ~page_mask) == 0 && (mapping.size() & ~page_mask) == 0);
  Slot& slot = slots[index];
  slot.version.fetch_add(1);
  slot.begin.store(begin);
  slot.end.store(begin + mapping.size());
  slot.faulted.store(false);
  slot.version.fetch_add(1);
  return std::unique_ptr<FaultGuard>(new FaultGuard(index));
}

FaultGuard::~FaultGuard() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  Slot& slot = slots[slot_];
  slot.version.fetch_add(1);
  slot.begin.store(0);
  slot.end.store(0);
  slot.version.fetch_add(1);
  r.free.push_back(slot_);
}

bool FaultGuard::faulted() const {
  return slots[slot_].faulted.load();
}

}  // namespace tensorlane::memory
