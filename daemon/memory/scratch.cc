#include "daemon/memory/scratch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/assert.h"

namespace tensorlane::memory {
namespace {

constexpr std::uint64_t kWorthHugePages = std::uint64_t{2} << 20;

Status no_memory(const char* what, std::uint64_t bytes) {
  return {Code::kResourceExhausted, "cannot take " + mebibytes(bytes) + " of memory for the sums of a job",
          std::string(what) + ": " + std::strerror(errno), "free memory on this host or register less"};
}

class Mapping final : public ports::Scratch {
 public:
  Mapping(std::span<std::byte> bytes, Ledger::Charge charge, std::shared_ptr<MemoryBudget> budget)
      : bytes_(bytes), charge_(std::move(charge)), budget_(std::move(budget)) {}
  ~Mapping() override { munmap(bytes_.data(), bytes_.size()); }

  std::span<std::byte> bytes() const override { return bytes_; }
  // Others take memory while a large mapping is populated, so the host is asked again for each piece.
  Result<bool> populate(std::uint64_t most) override {
    const std::uint64_t piece = std::min<std::uint64_t>(most, bytes_.size() - populated_);
    if (piece == 0) return true;
    TL_RETURN_IF_ERROR(budget_->check_host(piece));
    if (madvise(bytes_.data() + populated_, piece, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)
      return no_memory("madvise", piece);
    populated_ += piece;
    return populated_ == bytes_.size();
  }

 private:
  const std::span<std::byte> bytes_;
  const Ledger::Charge charge_;
  const std::shared_ptr<MemoryBudget> budget_;
  std::uint64_t populated_ = 0;
};

}  // namespace

Result<std::unique_ptr<ports::Scratch>> ScratchPool::make(const Owner& owner, std::uint64_t bytes) {
  TL_ASSERT(bytes > 0);
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > Ledger::kUnlimited - page) return budget_->check(owner, bytes);
  bytes = (bytes + page - 1) / page * page;
  TL_ASSIGN_OR_RETURN(Ledger::Charge charge, budget_->take(owner, bytes));
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return no_memory("mmap", bytes);
  if (bytes >= kWorthHugePages)
    madvise(base, bytes, MADV_HUGEPAGE);  // where the kernel does not offer it, small pages do
  return std::unique_ptr<ports::Scratch>(
      std::make_unique<Mapping>(std::span(static_cast<std::byte*>(base), bytes), std::move(charge), budget_));
}

Result<Ledger::Charge> ScratchPool::charge(const Owner& owner, std::uint64_t bytes) {
  return budget_->take(owner, bytes);
}

Status ScratchPool::check(const Owner& owner, std::uint64_t bytes) const {
  return budget_->check(owner, bytes);
}

}  // namespace tensorlane::memory
