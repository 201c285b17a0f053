// What the long commands of a lane bring along: memory that was charged, taken and populated on the preparer's thread.
// The preparer's until the command is delivered, the lane's from then on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/ledger.h"
#include "common/protocol/plan.h"
#include "daemon/engine/types.h"
#include "daemon/engine_log/observer.h"
#include "daemon/host/config.h"
#include "daemon/host/members.h"
#include "daemon/host/message_desk.h"
#include "daemon/ports/job.h"
#include "daemon/ports/scratch.h"

namespace tensorlane::host {

// How the engine of a job's rail is set up on this host.
engine::EngineConfig engine_config(RailIndex rail, const ports::JobSpec& spec, const HostConfig& config);

// What a job has on one rail before it runs.
struct RailStart {
  std::shared_ptr<ports::Scratch> staging;         // the job's, too, once it has begun
  std::unique_ptr<engine_log::Observer> observer;  // of its engine; may be none
};

// A job that is to begin.
class JobStart {
 public:
  // Both outlive it.
  JobStart(ports::JobSpec spec, const HostConfig& config, const HostPorts& ports);
  // A Preparer::Step.
  bool step();

  ports::JobSpec spec;
  Status status;  // when it is ready
  std::vector<RailStart> rails;
  std::unique_ptr<MessageDesk> desk;  // the job's, too, once it has begun, as is what follows
  std::vector<OpenMessage> messages;  // by MessageDesk::request_of()
  Ledger::Charge regions, message_tables;
  std::shared_ptr<const Members> everyone;

 private:
  Status begin_rail();
  Status make_desk();

  const HostConfig& config_;
  const std::size_t host_rails_;
  const HostPorts& ports_;
};

// What the daemon itself keeps of a tensor; empty where it needs none.
struct OwnMemory {
  std::span<std::byte> storage;  // of a batch: its buffer; of an exchange, that of a host with several ranks
  std::span<std::byte> wide;     // float32 scratch
};

// What a registration has taken of the daemon.
struct Taken {
  std::unique_ptr<ports::Scratch> scratch;  // none: its tensors need none
  Ledger::Charge regions, tables;
};

// Urgencies and classes of all tensors of a plan that has changed, decided anew a few at a time.
struct Review {
  bool relearns = false;  // the order in which they are waited for
  bool largest = false;   // which of them is
  std::uint32_t done = 0;
};

// Tensors that are to join the plan of a job, and the memory for their sums.
class PlanGrowth {
 public:
  // `added`: a plan with the new tensors alone.
  PlanGrowth(protocol::Plan added, std::shared_ptr<const ports::JobSpec> spec, const HostPorts& ports);
  // A Preparer::Step.
  bool step();

  // Of new tensor `i`.
  OwnMemory own_memory(std::size_t i) const {
    const Place& p = places_[i];
    return {piece(p.storage, p.storage_bytes), piece(p.wide, p.wide_bytes)};
  }

  protocol::Plan added;
  Status status;  // when it is ready
  Taken memory;
  std::shared_ptr<const Members> members;  // of its tensors; none: all ranks
  // The lane's.
  std::size_t taken = 0;  // so many of the new tensors are in the plan
  Review review;          // once all of them are

 private:
  struct Place {
    std::uint64_t storage = 0, storage_bytes = 0;  // of a batch or an exchange
    std::uint64_t wide = 0, wide_bytes = 0;        // float32 scratch
  };
  std::span<std::byte> piece(std::uint64_t offset, std::uint64_t bytes) const {
    return bytes == 0 ? std::span<std::byte>() : bytes_.subspan(offset, bytes);
  }
  Status begin();

  const std::shared_ptr<const ports::JobSpec> spec_;
  const HostPorts& ports_;
  std::vector<Place> places_;
  std::span<std::byte> bytes_;  // of scratch, whoever has it
  bool begun_ = false;
};

// There was none for tables.
Status no_memory();

// Tensors that are to leave the plan of a job, a few at a time.
struct PlanShrinking {
  std::uint32_t version = 0;
  protocol::TensorRange range;
  std::uint32_t done = 0;  // so many of them are gone
  Review review;           // once all of them are
  Taken taken;             // then for the preparer: giving it back takes a moment
};

// What the tables of a job hold for so many tensors that are gone, and for their slices on all rails together.
std::uint64_t vacant_table_bytes(std::uint64_t tensors, std::uint64_t slices, const ports::JobSpec& spec);

// The same error, for whoever reads it on another host.
Status on_host(const Status& status, const ports::JobSpec& spec);

// What `tensors` would take of this host at most, before their plan is known: entries of the region table, and bytes of
// scratch and tables. Of a process set: `spec` is narrowed to it.
struct Need {
  std::uint64_t regions = 0;
  std::uint64_t bytes = 0;
};
Need need_of(std::span<const protocol::TensorBody> tensors, const ports::JobSpec& spec);

}  // namespace tensorlane::host
