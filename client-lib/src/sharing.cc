// Groups of tensors whose memory the library allocates on a GPU, and which the ranks of a host share there
// (cuda/shares.h). What all ranks have to know of each other they tell in two small allgathers, so that all of them
// come to the same decision.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "client-lib/src/context.h"
#include "client-lib/src/cuda/kernels.h"
#include "client-lib/src/sharing.h"
#include "common/base/hash.h"

namespace tensorlane::client {
namespace {

using State = tl_request::State;

constexpr std::uint64_t kAlignment = 512;  // of a tensor in the group's memory

// What a rank says of itself. Plain bytes, the same on all machines.
struct Introduction {
  char host[64] = {};
  std::uint64_t host_hash = 0;
  std::uint64_t tensors = 0;  // a digest of what it registers
  char why_not[176] = {};     // empty: it can share
};

void put_text(std::span<char> to, const std::string& text) {
  std::memcpy(to.data(), text.data(), std::min(text.size(), to.size() - 1));
}

std::uint64_t digest(std::span<const tl_tensor_desc_t> descs) {
  Fnv1a hash;
  for (const tl_tensor_desc_t& desc : descs) {
    hash.add_text(desc.name);
    hash.add(desc.count);
    for (const int each : {static_cast<int>(desc.dtype), static_cast<int>(desc.operation), static_cast<int>(desc.op)})
      hash.add(each);
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
  return {field.data(), strnlen(field.data(), field.size())};
}

// Why these ranks do not share; empty: they do. The same on all of them.
std::string why_not(std::span<const Introduction> all, std::uint32_t self) {
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].why_not[0] == 0) continue;
    return "rank " + std::to_string(rank) + " on host '" + text_of(all[rank].host) + "': " + text_of(all[rank].why_not);
  }
  for (std::uint32_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].tensors != all[0].tensors) return "rank " + std::to_string(rank) + " registers other tensors than rank 0";
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

// Whether the ranks of a host share this one. The same on all ranks.
bool can_share(const tl_tensor_desc_t& desc, std::size_t ranks_of_host) {
  constexpr std::uint64_t kLeast = 256 << 10;  // less is copied in the time that meetings take
  if (desc.operation != TL_ALLREDUCE || bytes_of(desc) < kLeast) return false;
  // Half of the division is made on the GPU, and only a power of two is divided by without rounding.
  return desc.op != TL_AVERAGE || (ranks_of_host & (ranks_of_host - 1)) == 0;
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

bool wants_gpu_memory(const tl_tensor_desc_t& desc) {
  return raw_number(desc.memory) == TL_MEMORY_CUDA && desc.buffer == nullptr;
}

// An allgather of plain bytes: `mine`, and what all ranks of the tensor's set have given.
template <typename T>
Result<std::vector<T>> Context::tell_all(tl_tensor& tensor, const T& mine) {
  std::memcpy(tensor.buffer + tensor.set->rank * sizeof mine, &mine, sizeof mine);
  TL_ASSIGN_OR_RETURN(tl_request * request, post(tensor));
  TL_RETURN_IF_ERROR(wait(*request, static_cast<double>(settings_.timeout.value) / 1e9));
  std::vector<T> all(tensor.set->world_size);
  std::memcpy(all.data(), tensor.buffer, all.size() * sizeof(T));
  return all;
}

// One registration, from its beginning to its end.
class Context::GpuRegistration {
 public:
  GpuRegistration(Context& context, const SharedSet& set, const std::string& name,
                  std::span<const tl_tensor_desc_t> descs, tl_tensor_t** out)
      : context_(context), set_(set), name_(name), descs_(descs.begin(), descs.end()), out_(out) {}

  Status run();

 private:
  Status allocate();
  Status share();
  Result<std::vector<Introduction>> introduce(const std::string& why);
  Status meet_host(std::span<const std::uint32_t> ranks);
  Status load_kernels();
  Status map_others();
  Status register_shares(const std::vector<std::vector<std::uint32_t>>& hosts);
  Status register_rest();
  Status register_part(const SharedSet& set, std::span<const tl_tensor_desc_t> descs, std::span<tl_tensor_t*> tensors);
  void undo();

  Context& context_;
  const SharedSet set_;
  const std::string name_;
  std::vector<tl_tensor_desc_t> descs_;
  tl_tensor_t** const out_;
  GpuGroup group_;
  std::vector<std::uint64_t> offsets_;  // of tensors in the memory
  std::vector<cuda::DevicePointer> memories_;  // by rank on the host
  tl_tensor_t* introductions_ = nullptr;
  SharedSet host_;
  std::vector<tl_tensor_t*> at_host_;  // addresses, and the place where to meet for each tensor that is shared
  std::vector<std::size_t> shared_;    // which these are
  std::vector<cuda::Function_> kernels_;  // of each of them
};

Status Context::register_on_gpus(const SharedSet& set, const std::string& name, std::span<const tl_tensor_desc_t> descs,
                                 tl_tensor_t** out) {
  TL_ASSIGN_OR_RETURN(const std::string in_job, name_in_job(*set, "a group", name));
  {
    std::lock_guard lock(mutex_);
    if (gpu_groups_.contains(in_job))
      return Status(Code::kAlreadyExists, "group '" + name + "' is registered", "", "use another name");
  }
  return GpuRegistration(*this, set, name, descs, out).run();
}

Status Context::GpuRegistration::run() {
  TL_RETURN_IF_ERROR(allocate());
  Status status;
  if (set_->world_size > 1) {
    status = share();
  } else {
    group_.why_not = "the set has one rank";
  }
  if (status.ok()) status = register_rest();
  if (!status.ok()) {
    undo();
    return status;
  }
  std::lock_guard lock(context_.mutex_);
  context_.gpu_groups_.emplace(set_->in_job(name_), std::move(group_));
  return {};
}

Status Context::GpuRegistration::allocate() {
  std::uint64_t bytes = 0;
  for (const tl_tensor_desc_t& desc : descs_) {
    if (!wants_gpu_memory(desc)) {
      return Status(Code::kInvalidArgument, "group '" + name_ + "' cannot be registered",
                    std::string("tensor '") + (desc.name != nullptr ? desc.name : "") +
                        "' has a buffer, or is of host memory, and others are to get memory of a GPU",
                    "register them as two groups");
    }
    tl_tensor scratch;
    tl_tensor_desc_t on_host = desc;
    on_host.memory = TL_MEMORY_HOST;
    TL_RETURN_IF_ERROR(context_.describe(set_, on_host, descs_.size(), scratch).status());
    offsets_.push_back(bytes);
    bytes += (scratch.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  TL_ASSIGN_OR_RETURN(cuda::Device * device, context_.gpus_->current_device());
  TL_ASSIGN_OR_RETURN(group_.memory, context_.gpus_->allocate(*device, bytes));
  for (std::size_t i = 0; i < descs_.size(); ++i)
    descs_[i].buffer = reinterpret_cast<void*>(group_.memory->pointer() + offsets_[i]);
  return {};
}

// Decides with all ranks whether the hosts' ranks share, and registers what they do.
Status Context::GpuRegistration::share() {
  const std::string question = name_ + ".gpus";
  const auto asked = described("introductions", TL_ALLGATHER, set_->world_size * sizeof(Introduction));
  const std::string tensor = question + "/introductions";
  tl_tensor_desc_t named = asked;
  named.name = tensor.c_str();
  TL_RETURN_IF_ERROR(context_.register_plain(set_, question, std::span(&named, 1), &introductions_));
  TL_ASSIGN_OR_RETURN(const auto all, introduce(context_.settings_.gpu_sums ? "" : "TENSORLANE_GPU_SUMS is not 1"));
  group_.why_not = why_not(all, set_->rank);
  Status failed;
  if (group_.why_not.empty()) {
    const auto hosts = by_host(all, set_->rank);
    failed = meet_host(hosts[0]);
    if (failed.ok()) failed = map_others();
    if (failed.ok()) failed = load_kernels();
    TL_ASSIGN_OR_RETURN(const auto met, introduce(failed.ok() ? "" : failed.what() + ": " + failed.where()));
    group_.why_not = why_not(met, set_->rank);
    failed = {};
    if (group_.why_not.empty()) {
      failed = register_shares(hosts);
    } else {
      undo();
    }
  }
  TL_RETURN_IF_ERROR(failed);
  return context_.unregister_plain(*set_, question);
}

Result<std::vector<Introduction>> Context::GpuRegistration::introduce(const std::string& why) {
  Introduction mine;
  put_text(mine.host, context_.host_);
  mine.host_hash = fnv1a(context_.host_);
  mine.tensors = digest(descs_);
  put_text(mine.why_not, why);
  return context_.tell_all(*introductions_, mine);
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
  const std::string addresses = name_ + ".gpus/addresses";
  std::vector<tl_tensor_desc_t> descs = {
      described(addresses.c_str(), TL_ALLGATHER, ranks.size() * sizeof(cuda::MemoryAddress))};
  for (std::size_t i = 0; i < descs_.size(); ++i) {
    if (!can_share(descs_[i], ranks.size())) continue;
    shared_.push_back(i);
    descs.push_back(described(descs_[i].name, TL_BARRIER, 1));
  }
  if (shared_.empty()) {
    return {Code::kUnavailable, "no tensor of the group is shared",
            "only allreduces of 256 KiB and more are, and averages where a host's ranks are a power of two", ""};
  }
  at_host_.resize(descs.size());
  return register_part(host_, descs, at_host_);
}

Status Context::GpuRegistration::map_others() {
  cuda::MemoryAddress mine;
  Result<cuda::MemoryAddress> address = group_.memory->address();
  if (address.ok()) mine = *address;
  TL_ASSIGN_OR_RETURN(const auto all, context_.tell_all(*at_host_[0], mine));
  TL_RETURN_IF_ERROR(address.status());
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    if (rank == host_->rank) {
      memories_.push_back(group_.memory->pointer());
      continue;
    }
    TL_ASSIGN_OR_RETURN(const cuda::DevicePointer other, group_.memory->map(all[rank]));
    memories_.push_back(other);
  }
  return {};
}

Status Context::GpuRegistration::load_kernels() {
  for (const std::size_t tensor : shared_) {
    const tl_tensor_desc_t& desc = descs_[tensor];
    TL_ASSIGN_OR_RETURN(const cuda::Function_ kernel, group_.memory->device().kernel(static_cast<ReduceOp>(desc.op),
                                                                                     static_cast<Dtype>(desc.dtype)));
    kernels_.push_back(kernel);
  }
  return {};
}

// This rank's shares, each an allreduce with the ranks that have the same place on the other hosts.
Status Context::GpuRegistration::register_shares(const std::vector<std::vector<std::uint32_t>>& hosts) {
  std::vector<std::uint32_t> ranks;
  for (const std::vector<std::uint32_t>& host : hosts) ranks.push_back(host[host_->rank]);
  std::ranges::sort(ranks);
  const SharedSet across = ProcessSet::part(*set_, ranks, ProcessSet::Part::kAcross, context_.settings_);
  std::vector<tl_tensor_desc_t> descs;
  std::vector<std::shared_ptr<SharedTensor>> shares;
  for (std::size_t place = 0; place < shared_.size(); ++place) {
    tl_tensor_desc_t& desc = descs.emplace_back(descs_[shared_[place]]);
    const std::uint64_t element = dtype_size(static_cast<Dtype>(desc.dtype));
    auto& shared = *shares.emplace_back(std::make_shared<SharedTensor>());
    shared.place = at_host_[place + 1];
    shared.shares.ranges = cuda::cut(desc.count, element, static_cast<std::uint32_t>(memories_.size()));
    shared.shares.self = host_->rank;
    shared.shares.bytes = desc.count * element;
    shared.shares.element_bytes = element;
    shared.shares.divisor = desc.op == TL_AVERAGE ? static_cast<double>(memories_.size()) : 1;
    for (const cuda::DevicePointer memory : memories_) shared.shares.buffers.push_back(memory + offsets_[shared_[place]]);
    shared.shares.kernel = kernels_[place];
    const cuda::Shares::Range mine = shared.shares.ranges[host_->rank];
    desc.buffer = static_cast<std::byte*>(desc.buffer) + mine.offset;
    desc.count = mine.bytes / element;
    if (desc.positions == 0) desc.positions = static_cast<std::uint32_t>(descs_.size());
  }
  std::vector<tl_tensor_t*> tensors(descs.size());
  TL_RETURN_IF_ERROR(register_part(across, descs, tensors));
  for (std::size_t place = 0; place < tensors.size(); ++place) {
    tl_tensor& tensor = *tensors[place];
    tl_request& meeting = shares[place]->meeting;
    meeting.context = &context_;
    meeting.tensor = shares[place]->place;
    meeting.meets = true;
    tensor.gpu_buffer = descs_[shared_[place]].buffer;
    tensor.shared = std::move(shares[place]);
    out_[shared_[place]] = &tensor;
  }
  return {};
}

// Those that the host's ranks do not share: all, or some.
Status Context::GpuRegistration::register_rest() {
  std::vector<tl_tensor_desc_t> descs;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < descs_.size(); ++i) {
    if (std::ranges::find(shared_, i) != shared_.end()) continue;
    which.push_back(i);
    tl_tensor_desc_t& desc = descs.emplace_back(descs_[i]);
    if (desc.positions == 0) desc.positions = static_cast<std::uint32_t>(descs_.size());
  }
  if (descs.empty()) return {};
  std::vector<tl_tensor_t*> tensors(descs.size());
  TL_RETURN_IF_ERROR(register_part(set_, descs, tensors));
  for (std::size_t i = 0; i < which.size(); ++i) out_[which[i]] = tensors[i];
  return {};
}

// Back to where nothing was registered; the memory stays.
void Context::GpuRegistration::undo() {
  group_.memory->unmap();
  for (; !group_.parts.empty(); group_.parts.pop_back())
    (void)context_.unregister_plain(*group_.parts.back(), name_);
  shared_.clear();
  memories_.clear();
}

// The shares first, and the meetings last: who unregisters these has nothing mapped any more.
Status Context::unregister_on_gpus(GpuGroup& group, const std::string& name) {
  for (; !group.parts.empty(); group.parts.pop_back()) {
    if (group.parts.size() == 1) group.memory->unmap();
    TL_RETURN_IF_ERROR(unregister_plain(*group.parts.back(), name));
  }
  gpus_->release(group.memory);
  return {};
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
