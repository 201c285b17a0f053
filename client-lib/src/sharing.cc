// Groups of tensors that the ranks of a host share on their GPUs (cuda/shares.h): how they find out whether they can,
// and how they meet. What ranks have to know of each other they tell in small allgathers, so that all of them come to
// the same decision.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "client-lib/src/context.h"
#include "client-lib/src/cuda/kernels.h"
#include "client-lib/src/error.h"
#include "client-lib/src/registration.h"
#include "client-lib/src/sharing.h"
#include "common/base/hash.h"
#include "common/base/text.h"

namespace tensorlane::client {
namespace {

using State = tl_request::State;

// How long calls wait until no stream waits for a result.
constexpr Duration kForStreams = seconds(1);

// What a rank says of itself. Plain bytes, the same on all machines.
struct Introduction {
  char host[64] = {};
  std::uint64_t host_hash = 0;
  std::uint64_t tensors = 0;  // a digest of what it registers
  char why_not[176] = {};     // empty: it can share
};

// As much of it as there is room for, without half a character at the end.
void put_text(std::span<char> to, const std::string& text) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const std::size_t next = std::max<std::size_t>(printable_character(std::string_view(text).substr(bytes)), 1);
    if (bytes + next >= to.size()) break;
    bytes += next;
  }
  std::memcpy(to.data(), text.data(), bytes);
}

std::string name_of(const tl_tensor_desc_t& desc) {
  return desc.name != nullptr ? desc.name : "";
}

std::uint64_t digest(std::span<const tl_tensor_desc_t> descs) {
  Fnv1a hash;
  for (const tl_tensor_desc_t& desc : descs) {
    hash.add_text(name_of(desc));
    for (const std::uint64_t each : {desc.count, desc.row, std::uint64_t{desc.position}, std::uint64_t{desc.positions}})
      hash.add(each);
    for (const unsigned each :
         {raw_number(desc.dtype), raw_number(desc.operation), raw_number(desc.op), raw_number(desc.pattern)})
      hash.add(each);
    hash.add(raw_number(desc.operation) == TL_ALLREDUCE ? 0 : desc.root);  // of an allreduce it says nothing
    hash.add(desc.urgency);
  }
  return hash.value();
}

std::uint64_t bytes_of(const tl_tensor_desc_t& desc) {
  return desc.count * dtype_size(static_cast<Dtype>(desc.dtype));
}

// The ranks of each host, ascending; this rank's host first.
std::vector<std::vector<std::uint32_t>> by_host(std::span<const Introduction> all, std::uint32_t self) {
  std::map<std::uint64_t, std::vector<std::uint32_t>> hosts;
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) hosts[all[rank].host_hash].push_back(rank);
  std::vector<std::vector<std::uint32_t>> result = {hosts.extract(all[self].host_hash).mapped()};
  for (auto& [host, ranks] : hosts) result.push_back(std::move(ranks));
  return result;
}

std::string text_of(std::span<const char> field) {
  return printable({field.data(), strnlen(field.data(), field.size())});
}

// Why these ranks do not share; empty: they do. The same on all of them.
std::string why_not(std::span<const Introduction> all, std::uint32_t self) {
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].why_not[0] == 0) continue;
    return "rank " + std::to_string(rank) + " on host '" + text_of(all[rank].host) + "': " + text_of(all[rank].why_not);
  }
  for (std::uint32_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].tensors != all[0].tensors)
      return "rank " + std::to_string(rank) + " registers other tensors than rank 0";
  }
  const auto hosts = by_host(all, self);
  if (hosts.size() < 2) return "all ranks are on one host";
  for (const auto& ranks : hosts) {
    if (ranks.size() == hosts[0].size()) continue;
    return "hosts have different numbers of ranks ('" + text_of(all[ranks[0]].host) + "' has " +
           std::to_string(ranks.size()) + ", '" + text_of(all[hosts[0][0]].host) + "' has " +
           std::to_string(hosts[0].size()) + ")";
  }
  if (hosts[0].size() < 2) return "each host has one rank";
  if (hosts[0].size() > cuda::kMaxSources)
    return "a host has more than " + std::to_string(cuda::kMaxSources) + " ranks";
  return {};
}

// What a tensor's sums are in until they are the result.
tl_dtype_t dtype_of_sums(const tl_tensor_desc_t& desc) {
  return desc.dtype == TL_FLOAT16 || desc.dtype == TL_BFLOAT16 ? TL_FLOAT32 : desc.dtype;
}

tl_tensor_desc_t described(const char* name, tl_operation_t operation, std::uint64_t count) {
  tl_tensor_desc_t desc = TL_TENSOR_INIT;
  desc.name = name;
  desc.operation = operation;
  desc.count = count;
  desc.dtype = TL_UINT8;
  desc.urgency = 1;
  return desc;
}

}  // namespace

// Names become longer by what says of which ranks they are. The same on all ranks, or they disagree anyway.
bool may_be_shared(const std::string& group, std::span<const tl_tensor_desc_t> descs) {
  constexpr std::size_t kLongest = 160;
  const auto fits = [](const tl_tensor_desc_t& desc) { return name_of(desc).size() <= kLongest; };
  return group.size() <= kLongest && std::ranges::all_of(descs, fits);
}

bool is_worth_sharing(const tl_tensor_desc_t& desc) {
  constexpr std::uint64_t kLeast = 256 << 10;  // less is copied in the time that meetings take
  const unsigned dtype = raw_number(desc.dtype), op = raw_number(desc.op);
  return raw_number(desc.operation) == TL_ALLREDUCE && dtype < kDtypeCount && op < kReduceOpCount &&
         can_reduce(static_cast<ReduceOp>(op), static_cast<Dtype>(dtype)) && desc.count <= protocol::kMaxElements &&
         bytes_of(desc) >= kLeast;
}

// An allgather of plain bytes: `mine`, and what all ranks of the tensor's set have given.
template <typename T>
Result<std::vector<T>> Context::tell_all(tl_tensor& tensor, std::span<const T> mine) {
  std::memcpy(tensor.buffer + tensor.set->rank * mine.size_bytes(), mine.data(), mine.size_bytes());
  TL_ASSIGN_OR_RETURN(tl_request * request, post(tensor));
  TL_RETURN_IF_ERROR(wait(*request, static_cast<double>(settings_.timeout.value) / 1e9));
  std::vector<T> all(tensor.set->world_size * mine.size());
  std::memcpy(all.data(), tensor.buffer, all.size() * sizeof(T));
  return all;
}

// One registration, from its beginning to its end.
class Context::GpuRegistration {
 public:
  GpuRegistration(Context& context, const SharedSet& set, const std::string& name,
                  std::span<const tl_tensor_desc_t> descs, tl_tensor_t** out)
      : context_(context), set_(set), name_(name), question_(name + ".asked"), descs_(descs), out_(out) {}

  Status run();

 private:
  // A tensor that the host's ranks share.
  struct Shared {
    std::size_t index = 0;  // among the descriptions
    cuda::SharedMemory* memory = nullptr;
    cuda::Shares shares;
    tl_tensor_t* place = nullptr;  // where they meet
  };

  Status share();
  std::string find_memory();
  Result<std::vector<Introduction>> introduce(const std::string& why);
  Status meet_host(std::span<const std::uint32_t> ranks);
  Status find_others();
  Status prepare_sums();
  Status rehearse(cuda::Device& device);
  Status register_in_turn(const std::vector<std::vector<std::uint32_t>>& hosts);
  Status register_shares(const std::vector<std::vector<std::uint32_t>>& hosts);
  Status register_rest();
  Status register_part(const SharedSet& set, std::span<const tl_tensor_desc_t> descs, std::span<tl_tensor_t*> tensors);
  std::vector<tl_tensor_desc_t> descriptions(std::span<const std::size_t> which) const;
  void undo();

  Context& context_;
  const SharedSet set_;
  const std::string name_, question_;
  const std::span<const tl_tensor_desc_t> descs_;
  tl_tensor_t** const out_;
  GpuGroup group_;
  std::vector<Shared> shared_;
  tl_tensor_t *introductions_ = nullptr, *addresses_ = nullptr;
  SharedSet host_, asked_;  // the host's ranks; all of the set, as who asks each other
};

Status Context::register_shared(const SharedSet& set, const std::string& name, std::span<const tl_tensor_desc_t> descs,
                                tl_tensor_t** out) {
  // What is wrong with a description is said before any other rank is asked.
  for (const tl_tensor_desc_t& desc : descs) {
    tl_tensor scratch;
    TL_RETURN_IF_ERROR(describe(set, desc, descs.size(), scratch).status());
  }
  {
    std::unique_lock lock(mutex_);
    if (gpu_groups_.contains(set->in_job(name))) {
      return Status(Code::kAlreadyExists, "group '" + name + "' is registered", set->text(),
                    "unregister it first, or use another name");
    }
    const auto on_gpu = [](const tl_tensor_desc_t& desc) { return raw_number(desc.memory) == TL_MEMORY_CUDA; };
    if (std::ranges::any_of(descs, on_gpu)) wait_for_all_streams(lock);
  }
  return GpuRegistration(*this, set, name, descs, out).run();
}

// Calls of the driver that free, map and load can wait for all of the GPU, also for streams that wait for us, which go
// on only when the stager's calls go on. Not for long: what they wait for may come from a rank that waits for this one.
void Context::wait_for_all_streams(std::unique_lock<std::mutex>& lock) {
  const auto none_waits = [&] {
    return std::ranges::none_of(requests_, [](const tl_request& each) { return each.gpu != nullptr && each.detached; });
  };
  gpu_changed_.wait_for(lock, std::chrono::nanoseconds(kForStreams.value), none_waits);
}

Status Context::GpuRegistration::run() {
  Status status = share();
  if (status.ok()) status = register_rest();
  if (!status.ok()) {
    undo();
    if (introductions_ != nullptr) (void)context_.unregister_plain(*asked_, question_);
    return status;
  }
  std::lock_guard lock(context_.mutex_);
  context_.gpu_groups_.emplace(set_->in_job(name_), std::move(group_));
  return {};
}

// Decides with all ranks whether the hosts' ranks share, and registers what they do. Where one of them cannot, they are
// told why, and none does.
Status Context::GpuRegistration::share() {
  std::vector<std::uint32_t> ranks(set_->world_size);
  std::iota(ranks.begin(), ranks.end(), 0U);
  asked_ = ProcessSet::part(*set_, ranks, ProcessSet::Part::kAll, context_.settings_);
  const std::string tensor = name_ + "/introductions";
  const auto desc = described(tensor.c_str(), TL_ALLGATHER, set_->world_size * sizeof(Introduction));
  const Status asked = context_.register_plain(asked_, question_, std::span(&desc, 1), &introductions_);
  if (asked.code() == Code::kTimedOut) {
    return {asked.code(), asked.what(), asked.where(),
            "set TENSORLANE_GPU_SUMS alike on all ranks, which ask each other about '" + name_ + "'; " + asked.fix()};
  }
  TL_RETURN_IF_ERROR(asked);
  TL_ASSIGN_OR_RETURN(const auto all, introduce(find_memory()));
  const auto hosts = by_host(all, set_->rank);
  const auto agree = [&](const Status& status) -> Status {
    TL_ASSIGN_OR_RETURN(const auto told, introduce(status.ok() ? "" : status.what() + ": " + status.where()));
    group_.why_not = why_not(told, set_->rank);
    if (!group_.why_not.empty()) undo();
    return {};
  };
  group_.why_not = why_not(all, set_->rank);
  if (group_.why_not.empty()) {
    // Where that fails, the host's other ranks wait for this one, and hear of the error when it leaves.
    if (const Status met = meet_host(hosts[0]); !met.ok()) {
      introductions_ = nullptr;
      return met;
    }
    Status prepared = find_others();
    if (prepared.ok()) prepared = prepare_sums();
    TL_RETURN_IF_ERROR(agree(prepared));
  }
  if (group_.why_not.empty()) TL_RETURN_IF_ERROR(agree(register_in_turn(hosts)));
  if (!group_.why_not.empty()) shared_.clear();
  introductions_ = nullptr;
  return context_.unregister_plain(*asked_, question_);
}

// The order in which more than two hosts add depends on the order in which tensors are registered: shares of the
// host's first ranks come first, so that it is the same in every run.
Status Context::GpuRegistration::register_in_turn(const std::vector<std::vector<std::uint32_t>>& hosts) {
  if (hosts.size() == 2) return register_shares(hosts);
  Status mine;
  for (std::uint32_t rank = 0; rank < host_->world_size; ++rank) {
    if (rank == host_->rank) mine = register_shares(hosts);
    TL_RETURN_IF_ERROR(introduce("").status());
  }
  return mine;
}

// Why not all tensors that are worth it are in memory that can be shared; else empty.
std::string Context::GpuRegistration::find_memory() {
  for (std::size_t i = 0; i < descs_.size(); ++i) {
    if (!is_worth_sharing(descs_[i])) continue;
    cuda::SharedMemory* memory = raw_number(descs_[i].memory) == TL_MEMORY_CUDA
                                     ? context_.gpus_->memory_of(descs_[i].buffer, bytes_of(descs_[i]))
                                     : nullptr;
    if (memory == nullptr) return "a tensor is not in memory of tl_gpu_alloc: '" + name_of(descs_[i]) + "'";
    if (reinterpret_cast<std::uintptr_t>(descs_[i].buffer) % 64 != 0)
      return "a tensor does not begin at a multiple of 64 bytes: '" + name_of(descs_[i]) + "'";
    if (!shared_.empty() && &shared_.front().memory->device() != &memory->device())
      return "tensors of the group are on two GPUs";
    shared_.push_back({i, memory, {}, nullptr});
  }
  return shared_.empty() ? "no allreduce has 256 KiB or more" : "";
}

Result<std::vector<Introduction>> Context::GpuRegistration::introduce(const std::string& why) {
  Introduction mine;
  put_text(mine.host, context_.host_);
  mine.host_hash = fnv1a(context_.host_);
  mine.tensors = digest(descs_);
  put_text(mine.why_not, why);
  return context_.tell_all(*introductions_, std::span<const Introduction>(&mine, 1));
}

Status Context::GpuRegistration::register_part(const SharedSet& set, std::span<const tl_tensor_desc_t> descs,
                                               std::span<tl_tensor_t*> tensors) {
  TL_RETURN_IF_ERROR(context_.register_plain(set, name_, descs, tensors.data()));
  group_.parts.push_back(set);
  return {};
}

// The set of this host's ranks, and what they need to meet.
Status Context::GpuRegistration::meet_host(std::span<const std::uint32_t> ranks) {
  host_ = ProcessSet::part(*set_, ranks, ProcessSet::Part::kHost, context_.settings_);
  const std::string addresses = name_ + "/addresses";
  std::vector<tl_tensor_desc_t> descs = {
      described(addresses.c_str(), TL_ALLGATHER, ranks.size() * shared_.size() * sizeof(cuda::MemoryAddress))};
  for (const Shared& each : shared_) descs.push_back(described(descs_[each.index].name, TL_BARRIER, 1));
  std::vector<tl_tensor_t*> tensors(descs.size());
  TL_RETURN_IF_ERROR(register_part(host_, descs, tensors));
  addresses_ = tensors[0];
  for (std::size_t i = 0; i < shared_.size(); ++i) shared_[i].place = tensors[i + 1];
  return {};
}

// Where the host's other ranks have the tensors.
Status Context::GpuRegistration::find_others() {
  std::vector<cuda::MemoryAddress> mine(shared_.size());
  Status failed;
  for (std::size_t i = 0; i < shared_.size() && failed.ok(); ++i) {
    const void* buffer = descs_[shared_[i].index].buffer;
    const auto address = shared_[i].memory->address(reinterpret_cast<cuda::DevicePointer>(buffer));
    failed = address.status();
    if (address.ok()) mine[i] = *address;
  }
  if (failed.ok()) {
    for (const Shared& each : shared_) {
      each.memory->lend();
      group_.lent.push_back(each.memory);
    }
  }
  TL_ASSIGN_OR_RETURN(const auto all, context_.tell_all(*addresses_, std::span<const cuda::MemoryAddress>(mine)));
  TL_RETURN_IF_ERROR(failed);
  for (std::size_t i = 0; i < shared_.size(); ++i) {
    for (std::uint32_t rank = 0; rank < host_->world_size; ++rank) {
      const cuda::MemoryAddress& its = all[rank * shared_.size() + i];
      cuda::DevicePointer buffer = mine[i].pointer;
      if (rank != host_->rank && its.pointer != 0) {  // else that rank says why
        TL_ASSIGN_OR_RETURN(buffer, group_.mappings.open(shared_[i].memory->device(), its));
      }
      shared_[i].shares.buffers.push_back(buffer);
    }
  }
  return {};
}

// What sums this rank's shares, and where.
Status Context::GpuRegistration::prepare_sums() {
  cuda::Device& device = shared_.front().memory->device();
  std::uint64_t own_bytes = 0;  // of sums in memory of their own
  for (Shared& each : shared_) {
    const tl_tensor_desc_t& desc = descs_[each.index];
    const auto dtype = static_cast<Dtype>(desc.dtype);
    cuda::Shares& shares = each.shares;
    shares.self = host_->rank;
    shares.bytes = bytes_of(desc);
    shares.element_bytes = dtype_size(dtype);
    shares.sum_bytes = dtype_size(static_cast<Dtype>(dtype_of_sums(desc)));
    shares.ranges = cuda::cut(desc.count, shares.element_bytes, host_->world_size);
    shares.divisor = desc.op == TL_AVERAGE ? set_->world_size : 1;
    TL_ASSIGN_OR_RETURN(shares.combine, device.kernel(cuda::kernel_name(static_cast<ReduceOp>(desc.op), dtype)));
    if (shares.sum_bytes == shares.element_bytes) {
      shares.sums = shares.buffers[shares.self] + shares.mine().offset;
    } else {
      shares.sums = own_bytes;
      own_bytes += shares.mine().bytes / shares.element_bytes * shares.sum_bytes;
      own_bytes = (own_bytes + 63) / 64 * 64;
    }
    if (shares.sum_bytes != shares.element_bytes || desc.op == TL_AVERAGE) {
      TL_ASSIGN_OR_RETURN(shares.finish, device.kernel(cuda::finish_kernel_name(dtype)));
    }
  }
  if (own_bytes == 0) return rehearse(device);
  TL_ASSIGN_OR_RETURN(group_.sums,
                      context_.gpus_->allocate(device.ordinal(), own_bytes, cuda::SharedMemory::Owner::kLibrary));
  for (Shared& each : shared_) {
    if (each.shares.sum_bytes != each.shares.element_bytes) each.shares.sums += group_.sums->pointer();
  }
  return rehearse(device);
}

// What a registration can lack here is found out before others wait for it: memory that the daemon shares, and that can
// be pinned, which is there when it is asked for again.
Status Context::GpuRegistration::rehearse(cuda::Device& device) {
  std::vector<std::byte*> memory;
  Status failed;
  for (const Shared& each : shared_) {
    const cuda::Shares& shares = each.shares;
    const std::uint64_t bytes = shares.mine().bytes / shares.element_bytes * shares.sum_bytes;
    const Result<std::byte*> staging = context_.arenas_->allocate(bytes);
    failed = staging.status();
    if (!failed.ok()) break;
    memory.push_back(*staging);
    failed = context_.gpus_->pin(context_.arenas_->segment_of(*staging), device);
    if (failed.ok())
      failed = context_.gpus_->device_of(reinterpret_cast<const void*>(shares.sums), bytes, "a share").status();
    if (!failed.ok()) break;
  }
  for (std::byte* each : memory) (void)context_.arenas_->release(each);
  return failed;
}

// With the urgency that they have in the group.
std::vector<tl_tensor_desc_t> Context::GpuRegistration::descriptions(std::span<const std::size_t> which) const {
  std::vector<tl_tensor_desc_t> descs;
  for (const std::size_t index : which) {
    tl_tensor_desc_t& desc = descs.emplace_back(descs_[index]);
    if (desc.positions == 0) desc.positions = static_cast<std::uint32_t>(descs_.size());
  }
  return descs;
}

// This rank's shares, each an allreduce with the ranks that have the same place on the other hosts.
Status Context::GpuRegistration::register_shares(const std::vector<std::vector<std::uint32_t>>& hosts) {
  std::vector<std::uint32_t> ranks;
  for (const std::vector<std::uint32_t>& host : hosts) ranks.push_back(host[host_->rank]);
  std::ranges::sort(ranks);
  const SharedSet across = ProcessSet::part(*set_, ranks, ProcessSet::Part::kAcross, context_.settings_);
  std::vector<std::size_t> which;
  for (const Shared& each : shared_) which.push_back(each.index);
  std::vector<tl_tensor_desc_t> descs = descriptions(which);
  for (std::size_t i = 0; i < shared_.size(); ++i) {
    const cuda::Shares& shares = shared_[i].shares;
    descs[i].buffer = reinterpret_cast<void*>(shares.sums);
    descs[i].count = shares.mine().bytes / shares.element_bytes;
    descs[i].dtype = dtype_of_sums(descs[i]);
    if (descs[i].op == TL_AVERAGE) descs[i].op = TL_SUM;
    descs[i].root = 0;  // of an allreduce it says nothing
  }
  std::vector<tl_tensor_t*> tensors(descs.size());
  TL_RETURN_IF_ERROR(register_part(across, descs, tensors));
  std::lock_guard lock(context_.mutex_);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto made = std::make_shared<SharedTensor>();
    made->shares = std::move(shared_[i].shares);
    made->place = shared_[i].place;
    made->meeting.context = &context_;
    made->meeting.tensor = shared_[i].place;
    made->meeting.meets = true;
    tensors[i]->shared = made;
    tensors[i]->gpu_buffer = descs_[which[i]].buffer;
    out_[which[i]] = tensors[i];
  }
  return {};
}

// Those that the host's ranks do not share: all, or some.
Status Context::GpuRegistration::register_rest() {
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < descs_.size(); ++i) {
    if (std::ranges::find(shared_, i, &Shared::index) == shared_.end()) which.push_back(i);
  }
  if (which.empty()) return {};
  std::vector<tl_tensor_t*> tensors(which.size());
  TL_RETURN_IF_ERROR(register_part(set_, descriptions(which), tensors));
  for (std::size_t i = 0; i < which.size(); ++i) out_[which[i]] = tensors[i];
  return {};
}

// Back to where nothing was registered.
void Context::GpuRegistration::undo() {
  (void)context_.end_sharing(group_, name_);
}

// The meetings come last: who unregisters these has nothing mapped any more, and when all have, each rank's memory is
// its own again.
Status Context::end_sharing(GpuGroup& group, const std::string& name) {
  while (!group.parts.empty()) {
    const bool meetings = group.parts.back()->is_of_host();
    if (meetings) {
      std::unique_lock lock(mutex_);
      wait_for_all_streams(lock);
      lock.unlock();
      TL_RETURN_IF_ERROR(group.mappings.close());
    }
    TL_RETURN_IF_ERROR(unregister_plain(*group.parts.back(), name));
    group.parts.pop_back();
    if (!meetings) continue;
    for (cuda::SharedMemory* memory : std::exchange(group.lent, {})) memory->end_loan();
  }
  if (group.sums == nullptr) return {};
  return gpus_->release(std::exchange(group.sums, nullptr)->pointer());
}

// A group whose parts are unregistered one after another is used by nobody before the first one goes.
Status Context::unregister_shared(GpuGroup& group, const std::string& name) {
  {
    std::unique_lock lock(mutex_);
    drain_locked();
    // All of them first: a meeting is under way as long as what a stream waits for is.
    for (const SharedSet& part : group.parts) wait_for_streams(part->in_job(name), lock);
    for (const SharedSet& part : group.parts) {
      const auto found = groups_.find(part->in_job(name));
      const tl_tensor* used = found != groups_.end() ? used_locked(*found->second) : nullptr;
      if (used != nullptr) {
        return Status(Code::kInvalidArgument, "group '" + name + "' cannot be unregistered",
                      "an operation on tensor '" + used->text() + "' is under way",
                      "wait for its request first, on every rank");
      }
    }
  }
  return end_sharing(group, name);
}

// ---- memory ----

Result<void*> Context::allocate_on_gpu(int device, std::uint64_t bytes) {
  TL_ASSIGN_OR_RETURN(const cuda::SharedMemory* memory,
                      gpus_->allocate(device, bytes, cuda::SharedMemory::Owner::kProgram));
  return reinterpret_cast<void*>(memory->pointer());
}

Status Context::release_on_gpu(void* memory) {
  const auto pointer = reinterpret_cast<cuda::DevicePointer>(memory);
  {
    std::unique_lock lock(mutex_);
    const std::uint64_t bytes = std::max(gpus_->bytes_at(pointer), cuda::SharedMemory::bytes_left_at(pointer));
    for (const auto& tensor : tensors_) {
      const auto buffer = reinterpret_cast<cuda::DevicePointer>(tensor->gpu_buffer);
      if (buffer >= pointer && buffer - pointer < bytes) {
        return Status(Code::kInvalidArgument, "cannot free this memory of a GPU",
                      "tensor '" + tensor->text() + "' is registered in it", "unregister it first");
      }
    }
    wait_for_all_streams(lock);
  }
  const Status released = gpus_->release(pointer);
  if (released.code() != Code::kNotFound) return released;
  return free_later(memory);
}

Status Context::free_later(void* memory) {
  if (cuda::SharedMemory::give_back_later(reinterpret_cast<cuda::DevicePointer>(memory))) return {};
  return {Code::kInvalidArgument, "cannot free this memory of a GPU", "it is not of tl_gpu_alloc",
          "pass what that has given, once"};
}

// ---- meetings ----

void Context::GpuEvents::meet(cuda::Transfer& transfer) {
  bool wake = false;
  {
    std::lock_guard lock(context_.mutex_);
    if (!context_.failure_.ok()) return;  // which ends the transfer
    SharedTensor& shared = *transfer.request->tensor->shared;
    tl_tensor& place = *shared.place;
    shared.meeting.gpu = &transfer;
    shared.meeting.state = State::kPosted;
    place.active = &shared.meeting;
    wake = context_.rings_.submit({place.id, 0, ++place.sequence});
  }
  if (wake) context_.rings_.wake_daemon();
}

// The daemon has completed it, or never will.
void Context::end_meeting_locked(tl_request& meeting, bool all_are_there) {
  meeting.tensor->active = nullptr;
  meeting.state = State::kFree;
  if (all_are_there) gpus_->stager().met(*meeting.gpu);
}

}  // namespace tensorlane::client
