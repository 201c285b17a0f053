#include "client-lib/src/cuda/stager.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "client-lib/src/channel.h"
#include "client-lib/src/cuda/shares.h"

namespace tensorlane::client::cuda {
namespace {

using Phase = Transfer::Phase;
using Within = Transfer::Within;

// How often to look, by what is awaited: the end of a copy, a stream's progress, the network (whose results wake us).
// Up to four times as long when nothing has come for a while.
constexpr Duration kLookForCopies = microseconds(20), kLookForStreams = microseconds(50),
                   kLookForNotes = microseconds(200);
constexpr int kMostErrors = 3;  // of asking for one event, until we believe that nothing is under way on this GPU

}  // namespace

Stager::Stager(Listener& listener, Patience patience)
    : listener_(listener), patience_(patience), thread_([this] { run(); }) {}

Stager::~Stager() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  told_.notify_one();
  thread_.join();
}

void Stager::tell(Note note) {
  note.number = note.transfer->number;
  bool rests = false;
  {
    std::lock_guard lock(mutex_);
    notes_.push_back(std::move(note));
    rests = std::exchange(rests_, false);
  }
  if (rests) return listener_.wake();
  told_.notify_one();
}

void Stager::add(Transfer& transfer) {
  tell({.kind = Note::Kind::kAdd, .transfer = &transfer});
}
void Stager::placed(Transfer& transfer, std::uint64_t parts) {
  tell({.kind = Note::Kind::kPlaced, .transfer = &transfer, .parts = parts});
}
void Stager::arrived(Transfer& transfer) {
  tell({.kind = Note::Kind::kArrived, .transfer = &transfer});
}
void Stager::met(Transfer& transfer) {
  tell({.kind = Note::Kind::kMet, .transfer = &transfer});
}
void Stager::stop(Transfer& transfer, const Status& why, bool poison) {
  tell({.kind = Note::Kind::kStop, .transfer = &transfer, .why = why, .poison = poison});
}

void Stager::run() {
  prctl(PR_SET_NAME, "tensorlane-gpu");
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; 50 us by default, which is longer than a copy
  for (std::uint32_t quiet = 0;; ++quiet) {
    bool busy = take_notes();
    turn_began_ = now().value;
    busy |= turn(now());
    turn_began_ = 0;
    if (busy) {
      quiet = 0;
      continue;
    }
    if (transfers_.empty()) {
      std::unique_lock lock(mutex_);
      told_.wait(lock, [&] { return ending_ || !notes_.empty(); });
      if (notes_.empty()) return;
      continue;
    }
    bool copies = false, streams = false;
    for (const Transfer* transfer : transfers_) {
      copies |= transfer->in_flight > 0;
      streams |= transfer->phase == Phase::kActive && !transfer->is_ready;
    }
    const Duration look = copies ? kLookForCopies : streams ? kLookForStreams : kLookForNotes;
    {
      std::lock_guard lock(mutex_);
      if (!notes_.empty()) continue;
      rests_ = true;
    }
    listener_.pause(Duration(look.value << std::min(quiet / 128, 2U)));
    std::lock_guard lock(mutex_);
    rests_ = false;
  }
}

bool Stager::take_notes() {
  bool ending = false;
  {
    std::lock_guard lock(mutex_);
    taken_.swap(notes_);
    ending = ending_;
  }
  const bool any = !taken_.empty();
  for (std::size_t i = 0; i < taken_.size(); ++i) take(taken_[i]);
  taken_.clear();
  if (!ending) return any;
  if (ends_at_.value == 0) ends_at_ = now() + patience_.last_copies;
  for (Transfer* transfer : transfers_) {
    if (transfer->phase != Phase::kStopping && transfer->phase != Phase::kFilling) {
      Note stop{.kind = Note::Kind::kStop,
                .transfer = transfer,
                .number = transfer->number,
                .why = Status(Code::kAborted, "the context has ended")};
      take(stop);
    }
  }
  return any;
}

void Stager::keep(Transfer& transfer) {
  const auto number = [](const Transfer* each) { return each->number.load(); };
  const auto behind = std::ranges::upper_bound(transfers_, transfer.number.load(), {}, number);
  transfers_.insert(behind, &transfer);
  if (std::find(devices_.begin(), devices_.end(), transfer.device) == devices_.end())
    devices_.push_back(transfer.device);
}

void Stager::take(Note& note) {
  Transfer& transfer = *note.transfer;
  if (transfer.number != note.number) return;
  switch (note.kind) {
    case Note::Kind::kAdd:
      transfer.phase = Phase::kActive;
      transfer.reading.reset(transfer.layout, transfer.in.offset, transfer.in.bytes);
      transfer.writing.reset(transfer.layout, transfer.out.offset, transfer.out.bytes);
      transfer.summing.reset(transfer.layout, transfer.in.offset, transfer.in.bytes);
      keep(transfer);
      return;
    case Note::Kind::kPlaced:
      if (transfer.phase == Phase::kActive) transfer.writing.add(note.parts);  // else it was stopped meanwhile
      return;
    case Note::Kind::kArrived:
      if (transfer.phase != Phase::kActive) return;
      transfer.has_arrived = true;
      transfer.writing.add(transfer.writing.all());
      look_if_written(transfer);
      return;
    case Note::Kind::kMet:
      if (transfer.phase == Phase::kActive) has_met(transfer);
      return;
    case Note::Kind::kStop:
      if (transfer.phase == Phase::kStopping || transfer.phase == Phase::kFilling) return;
      if (transfer.phase == Phase::kNew) keep(transfer);
      transfer.phase = Phase::kStopping;
      transfer.stop_at = now() + patience_.last_copies;
      transfer.why = std::move(note.why);
      transfer.poison = note.poison && transfer.out.bytes > 0;
      if (transfer.is_lent) transfer.hold_until = now() + patience_.others;
      return;
  }
}

// Whether anything has moved.
bool Stager::turn(Time now) {
  bool moved = false;
  for (Device* device : devices_) {
    const auto is_its = [&](const Transfer* transfer) { return transfer->device == device; };
    if (std::ranges::none_of(transfers_, is_its)) continue;
    const Current current(*device);
    if (!current.status().ok()) {
      lose(*device, current.status());
      continue;
    }
    for (Device::Direction* direction : device->directions()) moved |= see_copies(*device, *direction, now);
    moved |= see_events(*device, now);
    using Way = Device::Way;
    for (const Way way : {Way::kFill, Way::kSum, Way::kFinish, Way::kGather, Way::kOut, Way::kIn})
      moved |= issue(*device, way, now);
  }
  return end_stopped(now) || moved;
}

// The GPU cannot be spoken to: nothing is under way on it any more.
void Stager::lose(Device& device, const Status& status) {
  for (Device::Direction* direction : device.directions()) direction->copies.clear();
  std::string tensor;
  for (Transfer* transfer : transfers_) {
    if (transfer->device != &device) continue;
    transfer->in_flight = 0;
    if (tensor.empty()) tensor = "tensor '" + transfer->tensor + "', ";
    if (transfer->phase == Phase::kStopping) transfer->poison = false;
    transfer->filled = true;
  }
  fail(Status(status.code(), status.what(), tensor + status.where(), status.fix()));
}

// Copies end in the order in which they were issued.
bool Stager::see_copies(Device& device, Device::Direction& direction, Time now) {
  bool moved = false;
  while (!direction.copies.empty()) {
    Device::Copy& oldest = direction.copies.front();
    const Error_ error = device.query(oldest.done);
    const auto where = [&] { return "tensor '" + oldest.transfer->tensor + "', " + device.where(); };
    if (error == kNotReady) {
      if (now - oldest.since > patience_.copy && oldest.errors == 0) {
        ++oldest.errors;  // said once
        fail(Status(Code::kAborted,
                    "a copy has not ended for " + std::to_string(patience_.copy.value / 1'000'000) + " ms", where(),
                    "if a stream of this program waits on the GPU for tensorlane, its hardware queue may block the "
                    "copy: set TENSORLANE_STREAM_WAIT=0, or CUDA_DEVICE_MAX_CONNECTIONS to 32"));
      }
      return moved;
    }
    if (error != kSuccess) {
      if (oldest.errors == 0) fail(device.driver().error(error, "cuEventQuery", where()));
      if (++oldest.errors < kMostErrors) return moved;
    }
    const Device::Copy done = oldest;
    direction.copies.erase(direction.copies.begin());
    --done.transfer->in_flight;
    moved = true;
    if (done.errors == 0 && done.transfer->phase == Phase::kActive) was_copied(done);
  }
  return moved;
}

void Stager::was_copied(const Device::Copy& copy) {
  Transfer& transfer = *copy.transfer;
  switch (copy.way) {
    case Device::Way::kOut:
      return was_read(transfer, copy.slice);
    case Device::Way::kIn:
    case Device::Way::kFill:
      transfer.writing.copied(copy.slice);
      return look_if_written(transfer);
    case Device::Way::kSum:
      transfer.summing.copied(copy.slice);
      return transfer.reading.add(copy.slice.ends);
    case Device::Way::kFinish:
      return listener_.meet(transfer);
    case Device::Way::kGather:
      transfer.gathered += copy.slice.bytes;
      if (transfer.gathered == transfer.shares->bytes - transfer.shares->mine().bytes) listener_.meet(transfer);
      return;
  }
}

void Stager::has_met(Transfer& transfer) {
  switch (++transfer.met) {
    case 1:
      return transfer.summing.add(transfer.summing.all());
    case 2:
      transfer.within = Within::kGather;
      transfer.gather_from = transfer.shares->self == 0 ? 1 : 0;
      return;
    default:
      return finish(transfer, {});
  }
}

void Stager::was_read(Transfer& transfer, const Pieces::Slice& slice) {
  transfer.reading.copied(slice);
  const bool all = transfer.reading.all_copied();
  if (slice.ends != 0 || all) listener_.read(transfer, slice.ends, all);
  look_if_written(transfer);
}

void Stager::look_if_written(Transfer& transfer) {
  if (!transfer.has_arrived || !transfer.writing.all_copied() || transfer.in_flight > 0) return;
  if (transfer.shares == nullptr) return finish(transfer, {});
  if (transfer.shares->finish == nullptr) return listener_.meet(transfer);
  transfer.within = Within::kFinish;
}

// Of each stream, the events come in the order of their transfers: the first one that has not come is asked for.
bool Stager::see_events(Device& device, Time now) {
  behind_.clear();
  bool moved = false;
  for (Transfer* transfer : transfers_) {
    const bool per_thread = transfer->stream == kStreamPerThread;  // is another one for each thread
    const bool is_due = transfer->phase == Phase::kActive || (transfer->phase == Phase::kStopping && transfer->poison);
    if (transfer->device != &device || !is_due || transfer->is_ready) continue;
    if (std::find(behind_.begin(), behind_.end(), transfer->stream) != behind_.end()) continue;
    const Error_ error = device.query(transfer->ready);
    if (error == kNotReady) {
      if (!per_thread) behind_.push_back(transfer->stream);
      continue;
    }
    if (error != kSuccess) {
      if (transfer->errors++ == 0) {
        fail(device.driver().error(error, "cuEventQuery", "tensor '" + transfer->tensor + "', " + device.where()));
        return false;  // which has changed the list
      }
      if (transfer->errors >= kMostErrors) transfer->poison = false;  // its stream will not go on
      continue;
    }
    transfer->is_ready = moved = true;
    transfer->stop_at = std::max(transfer->stop_at, now + patience_.last_copies);
    if (transfer->phase != Phase::kActive) continue;
    if (transfer->shares != nullptr) {
      transfer->is_lent = true;
      listener_.meet(*transfer);
      continue;
    }
    transfer->reading.add(transfer->reading.all());
    if (transfer->reading.all_copied()) listener_.read(*transfer, 0, true);  // there is nothing to copy
  }
  return moved;
}

bool Stager::wants(const Transfer& transfer, Device::Way way) {
  if (way == Device::Way::kFill) return transfer.phase == Phase::kFilling && !transfer.filled;
  if (transfer.phase != Phase::kActive) return false;
  if (way == Device::Way::kFinish) return transfer.within == Within::kFinish;
  if (way == Device::Way::kGather) return transfer.within == Within::kGather;
  const Pieces& pieces = way == Device::Way::kOut   ? transfer.reading
                         : way == Device::Way::kSum ? transfer.summing
                                                    : transfer.writing;
  return !pieces.empty();
}

// What is issued with that.
Pieces::Slice Stager::next_slice(Transfer& transfer, Device::Way way) {
  switch (way) {
    case Device::Way::kOut:
      return transfer.reading.next(kSlice);
    case Device::Way::kIn:
      return transfer.writing.next(kSlice);
    case Device::Way::kSum:
      return transfer.summing.next(kSlice);
    case Device::Way::kFill:
      transfer.filled = true;  // also where its memory cannot be reached
      return {0, transfer.out.bytes, 0};
    case Device::Way::kFinish:
      transfer.within = Within::kNothing;
      return {0, transfer.shares->mine().bytes, 0};
    case Device::Way::kGather:
      return next_of_others(transfer);
  }
  return {};
}

// Of the other ranks' shares, one after the other; from where the tensor begins.
Pieces::Slice Stager::next_of_others(Transfer& transfer) {
  const Shares& shares = *transfer.shares;
  const Shares::Range& range = shares.ranges[transfer.gather_from];
  const std::uint64_t bytes = std::min(kSliceOfPeer, range.bytes - transfer.gather_at);
  const Pieces::Slice slice{range.offset + transfer.gather_at, bytes, 0};
  transfer.gather_at += bytes;
  if (transfer.gather_at < range.bytes) return slice;
  transfer.gather_at = 0;
  if (++transfer.gather_from == shares.self) ++transfer.gather_from;
  if (transfer.gather_from == shares.ranges.size()) transfer.within = Within::kNothing;
  return slice;
}

bool Stager::issue(Device& device, Device::Way way, Time now) {
  Device::Direction& direction = device.direction(way);
  const auto before = [](const Transfer& a, const Transfer& b) {
    const bool a_boosted = a.boosted.load(std::memory_order_relaxed),
               b_boosted = b.boosted.load(std::memory_order_relaxed);
    if (a_boosted != b_boosted) return a_boosted;
    if (a.urgency != b.urgency) return a.urgency > b.urgency;
    return a.number < b.number;
  };
  bool moved = false;
  while (direction.copies.size() < Device::kInFlight) {
    Transfer* best = nullptr;
    for (Transfer* transfer : transfers_) {
      if (transfer->device == &device && wants(*transfer, way) && (best == nullptr || before(*transfer, *best)))
        best = transfer;
    }
    if (best == nullptr) return moved;
    const Status status = device.issue(way, *best, next_slice(*best, way), now);
    if (!status.ok()) {
      fail(status);
      return moved;
    }
    moved = true;
  }
  return moved;
}

// Of copies that do not end.
void Stager::forget_copies(Transfer& transfer) {
  for (Device::Direction* direction : transfer.device->directions())
    std::erase_if(direction->copies, [&](const Device::Copy& copy) { return copy.transfer == &transfer; });
  transfer.in_flight = 0;
  transfer.why =
      Status(transfer.why.code(), transfer.why.what(),
             transfer.why.where() + "; a copy on the GPU has not ended, and may yet write to it", transfer.why.fix());
}

// Those whose copies have ended, or will never.
bool Stager::end_stopped(Time now) {
  bool moved = false;
  some_ = transfers_;  // an end changes the list
  for (Transfer* transfer : some_) {
    const bool stopping = transfer->phase == Phase::kStopping, filling = transfer->phase == Phase::kFilling;
    if (!stopping && !filling) continue;
    if (transfer->in_flight > 0 && now < transfer->stop_at) continue;
    if (now < transfer->hold_until && !listener_.job_has_failed()) continue;
    // A stream that has not come to the operation would write over what we fill in; and it does not wait for us yet.
    const bool too_late = ends_at_.value != 0 && now > ends_at_;
    if (stopping && transfer->poison && !transfer->is_ready && !too_late) continue;
    if (transfer->in_flight > 0) forget_copies(*transfer);
    if (stopping && transfer->poison && transfer->is_ready) {
      transfer->phase = Phase::kFilling;
      transfer->stop_at = now + patience_.last_copies;
      moved = true;
      continue;
    }
    if (filling && !transfer->filled && now < transfer->stop_at) continue;
    finish(*transfer, transfer->why);
    moved = true;
  }
  return moved;
}

void Stager::finish(Transfer& transfer, const Status& status) {
  std::erase(transfers_, &transfer);
  std::atomic_ref(*transfer.word).store(transfer.value, std::memory_order_release);
  const Status why = status;  // `status` may be the transfer's
  listener_.over(transfer, why);
}

void Stager::fail(const Status& status) {
  listener_.failed(status);
  (void)take_notes();
}

}  // namespace tensorlane::client::cuda
