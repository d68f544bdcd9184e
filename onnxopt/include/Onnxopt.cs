// Opens artifacts of onnxopt in C#: one file, .NET Core 3.1 or later (C# 8), and the NuGet package
// Microsoft.ML.OnnxRuntime or Microsoft.ML.OnnxRuntime.Gpu, 1.21 or later, on Linux x64.
//
//   using var artifact = Onnxopt.Artifact.Open("path/to/artifact");
//   artifact.Session.Run(...);
//
// Open registers the artifact's library and applies the session and provider options that the artifact has for this
// machine: those that `onnxopt tune` wrote for its GPU, else those for any GPU, else those for the CPU. It checks no
// hashes: `onnxopt verify-signature` and `onnxopt.load` do.
#nullable enable
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using System.Text;
using System.Text.Json;
using Microsoft.ML.OnnxRuntime;

namespace Onnxopt
{
    /// <summary>An open artifact: a session, and the file of providers/ that it was opened with.</summary>
    public sealed class Artifact : IDisposable
    {
        public InferenceSession Session { get; }
        public Configuration Configuration { get; }

        private Artifact(InferenceSession session, Configuration configuration)
        {
            Session = session;
            Configuration = configuration;
        }

        public void Dispose() => Session.Dispose();

        /// <summary>Opens an artifact folder. Where this machine's file is for CUDA and CUDA does not start, the CPU's
        /// is taken, and the configuration's reason says so.</summary>
        /// <param name="configuration">A file of providers/ by name ("cpu", "h200"); null: this machine's.</param>
        /// <param name="cudaGraph">Provider options for CUDA graphs, for runs with an OrtIoBinding and a run option
        /// gpu_graph_id for each set of buffers, -1 for runs without a graph.</param>
        /// <param name="library">False: without the library, ONNX Runtime runs the original operators.</param>
        /// <param name="adjust">Is called with the session options when all others are set.</param>
        /// <exception cref="InvalidDataException">A file of the artifact is not what onnxopt writes.</exception>
        /// <exception cref="OnnxRuntimeException">ONNX Runtime refuses the library or the model.</exception>
        public static Artifact Open(string folder, string? configuration = null, bool cudaGraph = false,
                                    bool library = true, Action<SessionOptions>? adjust = null)
        {
            folder = Path.GetFullPath(folder);  // the library is opened by its absolute path
            Configuration chosen = Configuration.For(folder, configuration);
            bool mayFallBack = configuration == null && !cudaGraph && chosen.Provider != Configuration.Cpu;
            try
            {
                return OpenWith(folder, chosen, cudaGraph, library, adjust);
            }
            catch (OnnxRuntimeException error) when (mayFallBack)
            {
                string reason = $"{chosen.Name}.json ({chosen.Reason}) fails: {error.Message}";
                string path = Path.Combine(folder, "providers", "cpu.json");
                return OpenWith(folder, Configuration.Read(path, reason), cudaGraph, library, adjust);
            }
        }

        private static Artifact OpenWith(string folder, Configuration configuration, bool cudaGraph, bool library,
                                         Action<SessionOptions>? adjust)
        {
            using var options = new SessionOptions();
            configuration.Apply(options, cudaGraph);
            // Behind the configuration, whose entry onnxopt.disable it reads. There is none where nothing was fused.
            string path = Path.Combine(folder, "lib", "libonnxopt_ops.so");
            if (library && configuration.TakesLibrary && File.Exists(path)) options.RegisterCustomOpLibrary(path);
            adjust?.Invoke(options);
            return new Artifact(new InferenceSession(Path.Combine(folder, "model.onnx"), options), configuration);
        }
    }

    /// <summary>A file of providers/. Option names and values are those of the file.</summary>
    public sealed class Configuration
    {
        internal const string Cuda = "CUDAExecutionProvider", Cpu = "CPUExecutionProvider";

        public string Name { get; private set; } = "";
        /// <summary>Why it was chosen.</summary>
        public string Reason { get; private set; } = "";
        /// <summary>ONNX Runtime's name of the execution provider.</summary>
        public string Provider { get; private set; } = "";
        public IReadOnlyDictionary<string, string> ProviderOptions => _providerOptions;
        public IReadOnlyDictionary<string, string> SessionOptions => _sessionOptions;
        public IReadOnlyDictionary<string, string> SessionConfig => _sessionConfig;
        public bool CudaGraphQualifies { get; private set; }
        internal bool TakesLibrary { get; private set; } = true;

        private Dictionary<string, string> _providerOptions = new Dictionary<string, string>();
        private Dictionary<string, string> _sessionOptions = new Dictionary<string, string>();
        private Dictionary<string, string> _sessionConfig = new Dictionary<string, string>();
        private Dictionary<string, string> _cudaGraphOptions = new Dictionary<string, string>();
        private string _tunedDevice = "";

        /// <summary>The file that Open takes on this machine, or the one of this name.</summary>
        public static Configuration For(string folder, string? name = null)
        {
            string providers = Path.Combine(folder, "providers");
            string FileOf(string file) => Path.Combine(providers, file + ".json");
            if (name != null) return Read(FileOf(name), "asked for");
            if (!OrtEnv.Instance().GetAvailableProviders().Contains(Cuda))
                return Read(FileOf("cpu"), "this ONNX Runtime has no CUDA execution provider");
            string device = GpuName();
            if (device.Length == 0) return Read(FileOf("cpu"), "the driver reports no CUDA device");
            return Directory.GetFiles(providers, "*.json")
                        .Where(file => !file.EndsWith(".tensorrt.json"))
                        .OrderBy(file => file, StringComparer.Ordinal)
                        .Select(file => Read(file, $"tuned on {device}"))
                        .FirstOrDefault(read => read._tunedDevice == device)
                   ?? Read(FileOf("cuda"), $"no file was tuned on {device}");
        }

        internal static Configuration Read(string path, string reason)
        {
            try
            {
                using JsonDocument document = JsonDocument.Parse(File.ReadAllText(path));
                JsonElement root = document.RootElement;
                JsonElement graph = Member(root, "cuda_graph");
                var read = new Configuration
                {
                    Name = Path.GetFileNameWithoutExtension(path),
                    Reason = reason,
                    Provider = Text(Member(root, "provider")),
                    CudaGraphQualifies = Member(graph, "qualifies").ValueKind == JsonValueKind.True,
                    TakesLibrary = Member(root, "library").ValueKind != JsonValueKind.False,
                    _providerOptions = Strings(Member(root, "provider_options")),
                    _sessionOptions = Strings(Member(root, "session_options")),
                    _sessionConfig = Strings(Member(root, "session_config")),
                    _cudaGraphOptions = Strings(Member(graph, "provider_options")),
                    _tunedDevice = Text(Member(Member(root, "tuned"), "device")),
                };
                if (read.Provider != Cuda && read.Provider != Cpu)
                    throw new InvalidDataException(
                        $"{path}: is for the provider '{read.Provider}', and this file knows CUDA and the CPU");
                return read;
            }
            catch (Exception error) when (error is IOException || error is JsonException)
            {
                throw new InvalidDataException($"{path}: cannot be read: {error.Message}", error);
            }
        }

        internal void Apply(SessionOptions options, bool cudaGraph)
        {
            foreach (var (name, value) in _sessionOptions) Set(options, name, value);
            foreach (var (name, value) in _sessionConfig) options.AddSessionConfigEntry(name, value);
            var values = new Dictionary<string, string>(_providerOptions);
            if (cudaGraph)
            {
                if (!CudaGraphQualifies)
                    throw new NotSupportedException($"{Name}.json says that no CUDA graph is possible");
                foreach (var (name, value) in _cudaGraphOptions) values[name] = value;
            }
            if (Provider != Cuda) return;
            using var cuda = new OrtCUDAProviderOptions();
            cuda.UpdateOptions(values);
            options.AppendExecutionProvider_CUDA(cuda);
        }

        private static void Set(SessionOptions options, string name, string value)
        {
            switch (name)
            {
                case "graph_optimization_level":
                    options.GraphOptimizationLevel = value switch
                    {
                        "all" => GraphOptimizationLevel.ORT_ENABLE_ALL,
                        "extended" => GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
                        "basic" => GraphOptimizationLevel.ORT_ENABLE_BASIC,
                        _ => throw new InvalidDataException(
                            $"graph_optimization_level is '{value}', expected all, extended or basic"),
                    };
                    break;
                case "execution_mode":
                    options.ExecutionMode =
                        value == "parallel" ? ExecutionMode.ORT_PARALLEL : ExecutionMode.ORT_SEQUENTIAL;
                    break;
                case "intra_op_num_threads":
                    options.IntraOpNumThreads = int.Parse(value);
                    break;
                case "inter_op_num_threads":
                    options.InterOpNumThreads = int.Parse(value);
                    break;
                case "enable_cpu_mem_arena":
                    options.EnableCpuMemArena = value == "true";
                    break;
                case "enable_mem_pattern":
                    options.EnableMemoryPattern = value == "true";
                    break;
                default:
                    throw new InvalidDataException($"session option {name} is not known to this file");
            }
        }

        private static JsonElement Member(JsonElement owner, string name) =>
            owner.ValueKind == JsonValueKind.Object && owner.TryGetProperty(name, out JsonElement member)
                ? member
                : default;

        private static string Text(JsonElement value) => value.ValueKind switch
        {
            JsonValueKind.Undefined => "",
            JsonValueKind.String => value.GetString()!,
            _ => value.GetRawText(),
        };

        private static Dictionary<string, string> Strings(JsonElement value) =>
            value.ValueKind == JsonValueKind.Object
                ? value.EnumerateObject().ToDictionary(member => member.Name, member => Text(member.Value))
                : new Dictionary<string, string>();

        /// <summary>The first GPU as the driver calls it, "" where there is none. No CUDA context is created.</summary>
        private static string GpuName()
        {
            try
            {
                var name = new byte[256];
                bool found = cuInit(0) == 0 && cuDeviceGet(out int device, 0) == 0 &&
                             cuDeviceGetName(name, name.Length, device) == 0;
                return found ? Encoding.UTF8.GetString(name).TrimEnd('\0') : "";
            }
            catch (DllNotFoundException)
            {
                return "";
            }
        }

        [DllImport("libcuda.so.1")]
        private static extern int cuInit(uint flags);
        [DllImport("libcuda.so.1")]
        private static extern int cuDeviceGet(out int device, int ordinal);
        [DllImport("libcuda.so.1")]
        private static extern int cuDeviceGetName(byte[] name, int length, int device);
    }
}
