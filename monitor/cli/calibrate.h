// `tensorlane calibrate`: Caramel's linear network model (section 4.2) of the fabric between the two hosts of a job, as
// the ranks of a job get it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/json/json.h"
#include "daemon/engine/batching/network_model.h"

namespace tensorlane::cli {

struct CalibrateOptions {
  std::string socket;            // of this rank's daemon; where the client library looks, too
  std::string job;               // its name in the daemon's status
  std::string json_file;         // empty: none
  Duration budget = seconds(1);  // for each class and size, beyond the least number of transfers
};

// An urgency in the middle of what a class takes, so that no rounding moves it: `thresholds` are those of the fabric
// file, descending, one fewer than there are classes.
double urgency_of_class(const std::vector<double>& thresholds, std::size_t cls);

// What was measured of one class.
struct ClassModel {
  std::string name;
  Duration small, large;  // medians of one transfer of engine::kSmallSample and engine::kLargeSample
  engine::NetworkModel model;
};

// The report: {"hosts": [...], "transport": "tcp", "classes": [{"class", "small_s", "large_s", "overhead_s",
// "seconds_per_byte", "bits_per_second", "batching_threshold_bytes"}, ...]}.
nlohmann::json calibration_report(const std::vector<std::string>& hosts, const std::string& transport,
                                  const std::vector<ClassModel>& classes);

// What `plan` takes from a report: that of the least urgent class, which is the last.
struct CalibratedNetwork {
  BitsPerSecond rate;  // of payload
  Duration overhead;   // of one transfer
};
// kCorrupt where `text` is no such report. `where` goes into errors.
Result<CalibratedNetwork> read_calibration(const std::string& text, const std::string& where);

// One rank of the measurement, in a job of two ranks on two hosts; the other one runs the same. Rank 0 prints and
// writes. The answer is the exit status. Errors: kInvalidArgument (the job is another one, the file cannot be written),
// kUnavailable (the job cannot be joined, or failed), kCorrupt (a payload came back changed).
Result<int> run_calibrate(const CalibrateOptions& options);

}  // namespace tensorlane::cli
