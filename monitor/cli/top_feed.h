// Asks daemons again and again, for `tensorlane top`.
#pragma once

#include <memory>
#include <string>

#include "common/base/units.h"
#include "monitor/top/history.h"
#include "monitor/top/picture.h"

namespace tensorlane::cli {

struct TopQuestions {
  std::string socket;
  bool all_hosts = false;  // of the fabric file, where no job is looked at
  double interval = 1;     // seconds from one round to the next
  Duration patience = seconds(1);
};

// One round, of the job that is named or, without one, of all. It takes as long as the slowest host, at most about
// `patience`; longer where the daemon of this host itself hangs.
top::Answers ask_round(const TopQuestions& questions, const std::string& job);

// A thread that asks. One thread uses the object. A round that takes long keeps nobody from destroying it.
class TopFeed {
 public:
  explicit TopFeed(const TopQuestions& questions, const std::string& job);
  ~TopFeed();
  TopFeed(const TopFeed&) = delete;
  TopFeed& operator=(const TopFeed&) = delete;

  // Looks at a job from now on.
  void want(const std::string& job);
  // Whether there is something that this has not yet given.
  bool take(top::Picture* picture);
  // Seconds since the last round ended.
  double age() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace tensorlane::cli
