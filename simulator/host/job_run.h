// A job of a run, over all its hosts: what it computes, and the checkers that look at all of them.
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/checkers/admission.h"
#include "simulator/checkers/delivery.h"
#include "simulator/checkers/messages.h"
#include "simulator/host/client.h"
#include "simulator/host/liar.h"

namespace tensorlane::simulator {

struct JobRun {
  // `about`: the job's own scenario; outlives it.
  JobRun(const Scenario& about, std::size_t its_number, Findings& findings)
      : scenario(about),
        number(its_number),
        values(about),
        results(about, values, findings),
        delivery(about, findings),
        admission(about, findings),
        messages(about, findings),
        grants(about.rails()) {}

  // What a job broke, in the words of who judges: it is the other one that must not notice.
  const char* checker(const char* own) const { return number == 0 ? own : "neighbour"; }

  const Scenario& scenario;
  const std::size_t number;
  Values values;
  Results results;
  DeliveryChecker delivery;
  AdmissionChecker admission;
  MessageChecker messages;
  std::vector<std::vector<GivenGrant>> grants;  // by rail
  std::uint64_t progress = 0;                   // counts what moved it on
};

}  // namespace tensorlane::simulator
