#include "daemon/wiring/recording.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/engine_log/file_sink.h"

namespace tensorlane::wiring {

telemetry::ExporterConfig exporter_config(const config::DaemonConfig& config) {
  const auto label = [](const fabric::TrafficClass& c) {
    return telemetry::ClassLabel{c.name, c.dscp, c.pcp, c.service_level};
  };
  telemetry::ExporterConfig exporter{
      config.metrics, config.host, {}, label(config.fabric.classes.control), config.self().rails()};
  for (std::size_t c = 0; c < config.data_classes(); ++c)
    exporter.classes.push_back(label(config.fabric.classes.data[c]));
  return exporter;
}

telemetry::SpanStoreConfig span_config(const config::DaemonConfig& config) {
  telemetry::SpanStoreConfig spans;
  spans.source.host = config.host;
  spans.lanes = config.lanes;
  spans.memory = config.spans;
  const auto self = std::ranges::find(config.fabric.hosts, config.host, &fabric::Host::name);
  spans.source.sort_index = static_cast<int>(self - config.fabric.hosts.begin());
  for (const fabric::TrafficClass& c : config.fabric.classes.data) {
    spans.source.class_names.push_back(c.name);
    spans.source.class_dscps.push_back(config.tags ? c.dscp : 0);
  }
  return spans;
}

// Training matters more than its record: a log that cannot be written is an error in the daemon's own.
host::ObserverMaker recorder_maker(const config::DaemonConfig& config) {
  if (config.record.empty()) return {};
  if (const Status folder = engine_log::check_folder(config.record); !folder.ok())
    spdlog::error("no engine logs: {}", folder.to_string());
  return [&config](const ports::JobSpec& job, RailIndex rail) -> std::unique_ptr<engine_log::Observer> {
    auto sink = engine_log::open_file_sink(config.record, job.name, job.credentials.epoch, config.host, rail);
    if (sink.ok())
      return std::make_unique<engine_log::RecordingObserver>(
          std::make_unique<engine_log::Recorder>(std::move(*sink), config.record_limit, job.name, config.host));
    spdlog::error("no engine log: {}", sink.status().to_string());
    return nullptr;
  };
}

}  // namespace tensorlane::wiring
