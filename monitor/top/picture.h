// What `tensorlane top` shows: tables made from what daemons have answered. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "monitor/top/history.h"
#include "monitor/top/table.h"

namespace tensorlane::top {

enum class View { kJobs, kClasses, kHosts, kPeers, kRails, kRanks };
inline constexpr std::size_t kViews = 6;
inline constexpr std::array<std::string_view, kViews> kViewNames{"jobs", "classes", "hosts", "peers", "rails", "ranks"};

struct Picture {
  std::string host;   // of the daemon that was asked
  std::string error;  // why it has nothing to say
  std::string asked;  // the job that is looked at, as the user names it: all views but that of jobs are about it
  std::string job;    // its id, where it was found
  std::string job_name, job_state, no_job;
  std::size_t hosts = 0, silent = 0;         // of the job, or that were asked
  std::optional<double> iteration, exposed;  // `exposed` is not known where streams wait on a GPU
  std::string finding;                       // what explain says of the job
  std::array<Table, kViews> tables;
  Table host_classes;  // classes of each host
};

// The columns of a view; its rows are empty.
Table empty_table(View view);

Picture make_picture(const History& history);

// Everything, for machines.
nlohmann::json to_json(const Picture& picture);

}  // namespace tensorlane::top
