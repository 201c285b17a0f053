#include "simulator/host/client.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tensorlane::simulator {
namespace {

constexpr std::uint64_t kOfParts = 0x7061'7274'0000'0000;

}  // namespace

Results::Results(const Scenario& scenario, const Values& values, Findings& findings)
    : scenario_(scenario), values_(values), findings_(findings), expected_(scenario.plan.tensors.size()) {}

const std::vector<std::byte>& Results::expected(TensorId tensor, Sequence sequence) {
  Expected& known = expected_[tensor.value][sequence.value % 2];
  if (known.sequence != sequence.value)
    known = {sequence.value, values_.expected(scenario_.plan.tensors[tensor.value], sequence)};
  return known.bytes;
}

void Results::check(Rank rank, TensorId tensor, Sequence sequence, std::span<const std::byte> got) {
  const protocol::PlanTensor& planned = scenario_.plan.tensors[tensor.value];
  const bool own = exchanges(planned.operation);
  const std::vector<std::byte> of_rank = own ? values_.exchanged(rank, planned, sequence) : std::vector<std::byte>();
  const std::vector<std::byte>& expected = own ? of_rank : this->expected(tensor, sequence);
  if (stays_with_owners(planned.operation)) return check_owned(rank, planned, sequence, got, expected);
  if (std::ranges::equal(got, expected)) return;
  const auto differ = std::ranges::mismatch(got, expected);
  const auto index = static_cast<std::uint64_t>(differ.in1 - got.begin()) / dtype_size(planned.dtype);
  findings_.fail("sum", "rank {}: {} '{}' of {} elements, sequence {}: element {} is wrong", rank.value,
                 operation_name(planned.operation), planned.name, planned.elements, sequence.value, index);
}

// What is left where others own it means nothing.
void Results::check_owned(Rank rank, const protocol::PlanTensor& planned, Sequence sequence,
                          std::span<const std::byte> got, std::span<const std::byte> expected) {
  const std::size_t size = dtype_size(planned.dtype);
  for (std::uint64_t i = 0; i < planned.elements; ++i) {
    if (values_.owner(planned, i) != rank) continue;
    if (std::ranges::equal(got.subspan(i * size, size), expected.subspan(i * size, size))) continue;
    return findings_.fail("sum", "rank {}: {} '{}' of {} elements, sequence {}: element {} is wrong", rank.value,
                          operation_name(planned.operation), planned.name, planned.elements, sequence.value, i);
  }
}

Client::Client(HostIndex host, Rank rank, Context context, Random random)
    : host_(host),
      rank_(rank),
      context_(std::move(context)),
      random_(random),
      of_parts_(mix(context_.scenario.seed) ^ mix(kOfParts + rank.value)),
      messages_(host, rank,
                {context_.scenario, context_.events, context_.memory, context_.message_checker, context_.findings,
                 context_.trace, context_.post}),
      program_(0) {
  for (const protocol::PlanTensor& planned : context_.scenario.plan.tensors) {
    Tensor t;
    const TensorWorld& world = context_.values.world(planned);
    const std::optional<std::uint32_t> number = world.number_of(rank_);
    t.is_ours = !planned.is_batch() && number;
    if (t.is_ours) {
      t.most = context_.scenario.uses_at_first(planned.id.value);
      operations_ += context_.scenario.uses(planned.id.value);
      const std::uint64_t elements = buffer_elements(planned, world.size(), Rank(*number));
      t.buffer = context_.memory.allocate(elements * dtype_size(planned.dtype), context_.scenario.user);
    }
    tensors_.push_back(t);
  }
}

std::vector<Descriptor> Client::buffers() const {
  std::vector<Descriptor> all;
  for (const Tensor& t : tensors_) all.push_back(t.buffer);
  all.push_back(messages_.arena());
  return all;
}

void Client::start(std::size_t tensors) {
  allowed_ = tensors;
  start_iteration();
  schedule();
  messages_.start();
}

void Client::allow(std::size_t tensors) {
  for (; allowed_ < tensors; ++allowed_) {
    if (!tensors_[allowed_].is_ours) continue;
    to_submit_.insert(to_submit_.begin() + static_cast<std::ptrdiff_t>(random_.below(to_submit_.size() + 1)), allowed_);
  }
  schedule();
}

void Client::start_iteration() {
  program_ = Random(mix(context_.scenario.seed) ^ ++iteration_);
  Random& order = context_.scenario.client.in_step ? program_ : random_;
  for (std::size_t i = 0; i < allowed_; ++i) {
    if (tensors_[i].is_ours && tensors_[i].sequence < tensors_[i].most) to_submit_.push_back(i);
  }
  for (std::size_t i = to_submit_.size(); i > 1; --i) std::swap(to_submit_[i - 1], to_submit_[order.below(i)]);
  // What is left out comes in an iteration more.
  while (context_.scenario.client.in_step && to_submit_.size() > 1 && program_.chance(0.3)) to_submit_.pop_back();
}

void Client::schedule() {
  if (scheduled_ || to_submit_.empty() || waits_before_) return;
  scheduled_ = true;
  context_.events.after(random_.between(Duration(0), context_.scenario.client.think), [this] {
    scheduled_ = false;
    act();
  });
}

void Client::act() {
  if (frozen_ || dead_ || failed_ || to_submit_.empty()) return;
  const std::size_t index = to_submit_.back();
  to_submit_.pop_back();
  submit(index);
  if (context_.scenario.client.in_step) {
    // The last one is followed by waits for all; what they raise first is any.
    if (program_.chance(context_.scenario.client.raise)) waits_before_ = index;
    for (std::size_t i = 0; to_submit_.empty() && i < tensors_.size(); ++i) wait_for(i);
    if (waits_before_) wait_for(index);
  } else if (random_.chance(context_.scenario.client.raise)) {
    wait_for(random_.below(tensors_.size()));
  }
  schedule();
}

void Client::wait_for(std::size_t index) {
  const Tensor& t = tensors_[index];
  if (!t.pending) return;
  context_.submit({static_cast<std::uint32_t>(index), protocol::kFlagBoost, t.sequence - t.base});
}

void Client::submit(std::size_t index) {
  Tensor& t = tensors_[index];
  const protocol::PlanTensor& planned = context_.scenario.plan.tensors[index];
  check_poison(index);
  ++t.sequence;
  t.pending = true;
  ++pending_;
  if (begins_in_parts(planned)) return begin_in_parts(index);
  const Sequence sequence(t.sequence);
  context_.values.contribute(rank_, planned, sequence, context_.memory.resolve(t.buffer));
  context_.trace.line(host_, "rank {} submits tensor {} sequence {}", rank_.value, index, t.sequence);
  context_.submit({planned.id.value, 0, t.sequence - t.base});
}

void Client::completed(TensorId tensor, Sequence sequence, bool ok) {
  if (tensor.value >= tensors_.size() || !tensors_[tensor.value].pending ||
      tensors_[tensor.value].sequence != tensors_[tensor.value].base + sequence.value) {
    context_.findings.fail("delivery", "rank {}: completion of tensor {}, sequence {}, which was not pending",
                           rank_.value, tensor.value, sequence.value);
    return;
  }
  Tensor& t = tensors_[tensor.value];
  context_.trace.line(host_, "complete tensor {} sequence {} {}", tensor.value, sequence.value, ok ? "ok" : "failed");
  if (ok) context_.results.check(rank_, tensor, Sequence(t.sequence), context_.memory.resolve(t.buffer));
  if (t.in_parts) end_in_parts(tensor.value, ok);
  t.pending = false;
  if (waits_before_ == tensor.value) waits_before_.reset();
  t.completed = context_.events.now();
  --pending_;
  if (ok) ++completed_;
  if (ok && context_.scenario.plan.tensors[tensor.value].world != nullptr) ++completed_of_sets_;
  poison(tensor.value);
  if (!ok) failed_ = true;
  if (failed_) return;
  if (!context_.scenario.client.ahead) {
    if (pending_ == 0 && to_submit_.empty()) start_iteration();
  } else if (t.sequence < t.most) {
    to_submit_.insert(to_submit_.begin() + static_cast<std::ptrdiff_t>(random_.below(to_submit_.size() + 1)),
                      tensor.value);
  }
  schedule();
}

void Client::fail() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& t = tensors_[i];
    if (t.pending) completed(TensorId(static_cast<std::uint32_t>(i)), Sequence(t.sequence - t.base), false);
  }
  failed_ = true;
  messages_.fail();
}

void Client::set_frozen(bool frozen) {
  frozen_ = frozen;
  messages_.set_frozen(frozen);
  if (frozen) return;
  schedule();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].in_parts && std::exchange(tensors_[i].in_parts->stands, false)) go_on_later(i);
  }
}

bool Client::is_done_with(protocol::TensorRange range) const {
  return std::all_of(tensors_.begin() + range.first, tensors_.begin() + range.end(),
                     [](const Tensor& t) { return !t.is_ours || (!t.pending && t.sequence == t.most); });
}

void Client::register_again(protocol::TensorRange range) {
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    Tensor& t = tensors_[i];
    if (!t.is_ours) continue;
    t.base = t.sequence;
    t.most = context_.scenario.uses(i);
    if (context_.scenario.client.ahead) to_submit_.push_back(i);
  }
  if (!context_.scenario.client.ahead && pending_ == 0 && to_submit_.empty()) start_iteration();
  schedule();
}

bool Client::finished() const {
  if (pending_ > 0 || !messages_.finished()) return false;
  return failed_ || dead_ || completed_ == operations_;
}

bool Client::holds(TensorId tensor, Sequence sequence) const {
  const Tensor& t = tensors_[tensor.value];
  return t.is_ours && (t.sequence < sequence.value || (t.sequence == sequence.value && t.pending));
}

std::byte Client::poison_byte(std::size_t index, std::uint64_t offset) const {
  return static_cast<std::byte>(0xa0 ^ (offset * 7) ^ (index << 3) ^ tensors_[index].sequence);
}

// What is ours again gets other contents at once: whoever still reads or writes it is found out.
void Client::poison(std::size_t index) {
  std::uint64_t offset = 0;
  for (std::byte& b : context_.memory.resolve(tensors_[index].buffer)) b = poison_byte(index, offset++);
  tensors_[index].poisoned = true;
}

void Client::check_poison(std::size_t index) const {
  if (!tensors_[index].poisoned) return;
  std::uint64_t offset = 0;
  for (std::byte b : context_.memory.resolve(tensors_[index].buffer)) {
    if (b == poison_byte(index, offset++)) continue;
    return context_.findings.fail("memory", "rank {}: tensor {} was written after sequence {} had completed (byte {})",
                                  rank_.value, index, tensors_[index].sequence, offset - 1);
  }
}

void Client::check_buffers() const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].pending) check_poison(i);
  }
  messages_.check_arena();
}

std::vector<Time> Client::completion_times() const {
  std::vector<Time> times;
  for (const Tensor& t : tensors_) times.push_back(t.completed);
  return times;
}

std::string Client::describe_pending() const {
  std::string text;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].pending) text += fmt::format(" {}#{}", i, tensors_[i].sequence);
  }
  return text + messages_.describe_open();
}

}  // namespace tensorlane::simulator
