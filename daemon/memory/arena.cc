#include "daemon/memory/arena.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "daemon/memory/fault_guard.h"

namespace tensorlane::memory {
namespace {

constexpr std::uint64_t kHugePage = 2 << 20;

constexpr std::uint64_t kUnmapAtOnce = std::uint64_t{64} << 20;

Status system_error(const char* what, std::uint64_t bytes) {
  const Code code = errno == ENOMEM || errno == ENOSPC || errno == EMFILE || errno == ENFILE || errno == EAGAIN
                        ? Code::kResourceExhausted
                        : Code::kInternal;
  return Status(code, "cannot make " + mebibytes(bytes) + " of shared memory",
                std::string(what) + ": " + std::strerror(errno), "free memory or descriptors on this host");
}

// Whether the kernel can keep a file from being mapped for writing once more. Its answer is kept; that there was no
// descriptor to ask it with is none.
Result<bool> kernel_seals() {
  enum class Answer : std::uint8_t { kNone, kYes, kNo };
  static std::atomic<Answer> kept{Answer::kNone};
  if (kept == Answer::kNone) {
    const int fd = memfd_create("tensorlane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return system_error("memfd_create", static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
    kept = fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0 ? Answer::kYes : Answer::kNo;
    close(fd);
  }
  return kept == Answer::kYes;
}

class Segment final : public ports::SharedMemory {
 public:
  // Takes over the descriptor and the mapping.
  Segment(int fd, int watch, std::span<std::byte> bytes, std::unique_ptr<FaultGuard> guard, Ledger::Charge charge,
          std::shared_ptr<Leftovers> leftovers)
      : fd_(fd), watch_(watch), bytes_(bytes), guard_(std::move(guard)), leftovers_(std::move(leftovers)) {
    charges_.push_back(std::move(charge));
  }
  ~Segment() override {
    guard_.reset();
    // In pieces: the lane may wait for the address space.
    for (std::uint64_t at = 0; at < bytes_.size(); at += kUnmapAtOnce) {
      munmap(bytes_.data() + at, std::min<std::uint64_t>(kUnmapAtOnce, bytes_.size() - at));
    }
    leftovers_->add(watch_, fd_, std::move(charges_));  // closes it; then goes what that is charged with
  }

  std::span<std::byte> bytes() const override { return bytes_; }
  Result<int> share() const override {
    const int fd = fcntl(fd_, F_DUPFD_CLOEXEC, 0);
    return fd < 0 ? Result<int>(system_error("fcntl", bytes_.size())) : fd;
  }
  void hold(Ledger::Charge charge) override { charges_.push_back(std::move(charge)); }
  void hold_descriptor(Ledger::Charge charge) override { descriptor_ = std::move(charge); }
  // Through the mapping first, since only that can give huge pages. It fails with an error where a plain access would
  // get a SIGBUS; what it could not do, fallocate does or refuses.
  Result<bool> populate(std::uint64_t most) override {
    const std::uint64_t piece = std::min<std::uint64_t>(most, bytes_.size() - populated_);
    if (piece == 0) return true;
    madvise(bytes_.data() + populated_, piece, MADV_POPULATE_WRITE);
    if (fallocate(fd_, 0, static_cast<off_t>(populated_), static_cast<off_t>(piece)) != 0)
      return system_error("fallocate", bytes_.size());
    populated_ += piece;
    return populated_ == bytes_.size();
  }
  bool damaged() const override {
    if (guard_->faulted()) return true;
    struct stat info {};
    // st_blocks counts what is allocated, in 512 bytes: less than the size means that a hole was punched.
    return fstat(fd_, &info) != 0 || static_cast<std::uint64_t>(info.st_blocks) * 512 < bytes_.size();
  }
  Status check_sealed() const override {
    if (const int seals = fcntl(fd_, F_GET_SEALS); (seals & F_SEAL_FUTURE_WRITE) == 0) {
      TL_ASSIGN_OR_RETURN(const bool could, kernel_seals());
      if (could) {
        return Status(Code::kCorrupt, "an arena that its client has not sealed", "",
                      "use a client library of the daemon's version");
      }
    }
    if (damaged()) {
      return Status(Code::kCorrupt, "a client took memory out of its arenas", "",
                    "do not punch holes into or truncate memory of tl_alloc");
    }
    return {};
  }

 private:
  const int fd_;
  const int watch_;  // of leftovers_
  const std::span<std::byte> bytes_;
  std::vector<Ledger::Charge> charges_;
  Ledger::Charge descriptor_;
  std::unique_ptr<FaultGuard> guard_;
  const std::shared_ptr<Leftovers> leftovers_;
  std::uint64_t populated_ = 0;
};

// The mapping of an empty segment, or an error with the descriptor still open.
Result<std::span<std::byte>> map_sealed(int fd, std::uint64_t bytes) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return system_error("ftruncate", bytes);
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return system_error("fcntl", bytes);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return system_error("mmap", bytes);
  if (bytes >= kHugePage) madvise(base, bytes, MADV_HUGEPAGE);  // where the kernel does not offer it, small pages do
  return std::span(static_cast<std::byte*>(base), bytes);
}

}  // namespace

Result<std::shared_ptr<ports::SharedMemory>> ArenaPool::make(const Owner& owner, std::uint64_t bytes) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "a segment of zero bytes", "", "ask for at least one byte");
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > Ledger::kUnlimited - page) return budget_->check(owner, bytes);
  bytes = (bytes + page - 1) / page * page;
  TL_ASSIGN_OR_RETURN(Ledger::Charge charge, take(owner, bytes));
  const int fd = memfd_create("tensorlane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return system_error("memfd_create", bytes);
  const Result<int> watch = leftovers_->watch(fd);
  if (!watch.ok()) {
    close(fd);
    return watch.status();
  }
  Result<std::span<std::byte>> mapped = map_sealed(fd, bytes);
  if (!mapped.ok()) {
    close(fd);
    return mapped.status();
  }
  std::unique_ptr<FaultGuard> guard = FaultGuard::make(*mapped);
  if (guard == nullptr) {
    munmap(mapped->data(), mapped->size());
    close(fd);
    return Status(Code::kResourceExhausted, "too many segments of shared memory",
                  "the limit is " + std::to_string(FaultGuard::kMaxGuards), "use fewer and larger segments");
  }
  return std::shared_ptr<ports::SharedMemory>(
      std::make_shared<Segment>(fd, *watch, *mapped, std::move(guard), std::move(charge), leftovers_));
}

// A client may have let go of its last segments just now.
Result<Ledger::Charge> ArenaPool::take(const Owner& owner, std::uint64_t bytes) {
  Result<Ledger::Charge> charge = budget_->take(owner, bytes);
  if (charge.ok() || leftovers_->empty()) return charge;
  leftovers_->sweep();
  return budget_->take(owner, bytes);
}

}  // namespace tensorlane::memory
