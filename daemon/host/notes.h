// What the lanes of a machine say to each other: a job whose rails are on other lanes than its own speaks to them, and
// they to it (rails.h), by notes.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <variant>

#include "common/base/units.h"
#include "daemon/engine/types.h"
#include "daemon/host/message_desk.h"

namespace tensorlane::host {

class Job;
class JobPart;
class JobStart;

// To the lane of a job's rails:
struct BeginNote {  // the job begins: make its rails
  std::shared_ptr<JobStart> start;
};
struct StartNote {  // these three, engine::PartReady and MessagePost, as in Rails
  TensorId tensor;
  Sequence sequence;
  bool in_parts = false;
};
struct BoostNote {
  TensorId tensor;
  Sequence sequence;
};
struct OfferNote {
  TensorId tensor;
};
struct RailsNote {  // what is not on an operation's way
  std::function<void(JobPart&, Time now)> call;
};
// To the job's own lane; of an operation, engine::Complete, engine::PartInPlace and engine::Agreed of RailsOwner, and
// of a message engine::MessageDone:
struct JobNote {
  std::function<void(Job&, Time now)> call;
};

struct Note {
  JobId job;
  Epoch epoch;           // a note that comes too late is of an earlier one
  std::size_t from = 0;  // lane
  std::variant<BeginNote, StartNote, engine::PartReady, BoostNote, OfferNote, MessagePost, RailsNote, engine::Complete,
               engine::PartInPlace, engine::Agreed, engine::MessageDone, JobNote>
      what;
};

// How one lane speaks with the others. Its thread alone.
class Links {
 public:
  virtual ~Links() = default;
  // What one lane says to another arrives in order, and never is lost. It is woken if it sleeps.
  virtual void post(std::size_t lane, Note note) = 0;
  // The next note for this lane. False when there is none now.
  virtual bool take(Note* note) = 0;
};

}  // namespace tensorlane::host
