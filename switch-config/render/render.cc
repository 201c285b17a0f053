#include "switch-config/render/render.h"

#include "switch-config/render/release.h"

namespace tensorlane::switches {

Result<std::vector<RenderedFile>> render(const DeviceQos& device, fabric::Nos target, BufferModel model) {
  TL_RETURN_IF_ERROR(release_of(device, target).status());
  switch (target) {
    case fabric::Nos::kSonic:
      return render_sonic(device, model);
    case fabric::Nos::kCumulus:
      return render_cumulus(device);
    case fabric::Nos::kEos:
      return render_eos(device);
    case fabric::Nos::kNxos:
      return render_nxos(device);
    case fabric::Nos::kJunos:
      return render_junos(device);
    case fabric::Nos::kOnyx:
      return render_onyx(device);
    case fabric::Nos::kOpenConfig:
      return render_openconfig(device);
    case fabric::Nos::kLinux:
      break;
  }
  return render_linux(device);
}

}  // namespace tensorlane::switches
