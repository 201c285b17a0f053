// From what devices are to do to the files that make them do it.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "switch-config/model/device_qos.h"

namespace tensorlane::switches {

struct RenderedFile {
  std::string name;  // "config_db.json"
  std::string text;
  bool program = false;  // a script: executable
};

// SONiC has two buffer models: in the dynamic one the switch computes headroom itself, in the traditional one the file
// holds it.
enum class BufferModel { kByPlatform, kDynamic, kTraditional };

// Writes one device; equal devices give equal bytes. InvalidArgument, where = the device's name, for what the target
// cannot express and for a release of it that is older than those that are known. `model` matters to SONiC alone.
Result<std::vector<RenderedFile>> render(const DeviceQos& device, fabric::Nos target, BufferModel model);

// What it is made of, one for each target.
Result<std::vector<RenderedFile>> render_sonic(const DeviceQos& device, BufferModel model);
Result<std::vector<RenderedFile>> render_openconfig(const DeviceQos& device);
Result<std::vector<RenderedFile>> render_linux(const DeviceQos& device);
Result<std::vector<RenderedFile>> render_eos(const DeviceQos& device);
Result<std::vector<RenderedFile>> render_nxos(const DeviceQos& device);
Result<std::vector<RenderedFile>> render_cumulus(const DeviceQos& device);
Result<std::vector<RenderedFile>> render_junos(const DeviceQos& device);
Result<std::vector<RenderedFile>> render_onyx(const DeviceQos& device);

// Scripts that set up a host's NICs, say what differs, and restore what was there.
Result<std::vector<RenderedFile>> render_host(const DeviceQos& device);

struct RenderedDevice {
  std::string name;
  std::vector<RenderedFile> files;
};

// Writes OUT/DEVICE/FILE for all of them, or nothing: into a folder beside OUT that then takes OUT's place. An OUT that
// is there must hold nothing but folders of such files, which are replaced. FailedPrecondition-like errors are
// InvalidArgument: OUT holds something else, or cannot be written.
Status write_folder(const std::string& out, const std::vector<RenderedDevice>& devices);

}  // namespace tensorlane::switches
