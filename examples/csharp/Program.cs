// Runs an artifact from C#: dotnet run -- ARTIFACT [INPUT=1x3x48x320 ...]
//
// Needs the NuGet package Microsoft.ML.OnnxRuntime (or Microsoft.ML.OnnxRuntime.Gpu) 1.21 or later on Linux x64.
// onnxopt's tests do not run this file: no .NET SDK is among the tools that they may install.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

if (args.Length < 1)
{
    Console.Error.WriteLine("usage: Example ARTIFACT [INPUT=1x3x48x320 ...]");
    return 2;
}

string artifact = Path.GetFullPath(args[0]);
Dictionary<string, int[]> shapes = args.Skip(1)
    .Select(argument => argument.Split('='))
    .ToDictionary(pair => pair[0], pair => pair[1].Split('x').Select(int.Parse).ToArray());

using var options = new SessionOptions();
// The one line that onnxopt adds; without it the same model runs on ONNX Runtime's own kernels.
options.RegisterCustomOpLibrary(Path.Combine(artifact, "lib", "libonnxopt_ops.so"));
using var session = new InferenceSession(Path.Combine(artifact, "model.onnx"), options);

var inputs = session.InputMetadata.Select(input => MakeInput(input.Key, input.Value, shapes)).ToList();
using var results = session.Run(inputs);
foreach (DisposableNamedOnnxValue result in results)
{
    string what = result.Value is Tensor<float> values
        ? $"float [{string.Join(", ", values.Dimensions.ToArray())}]"
        : result.ElementType.ToString();
    Console.WriteLine($"{result.Name}: {what}");
}
return 0;

static NamedOnnxValue MakeInput(string name, NodeMetadata metadata, Dictionary<string, int[]> shapes)
{
    int[] shape = shapes.GetValueOrDefault(name, metadata.Dimensions).Select(d => d < 0 ? 1 : d).ToArray();
    int count = shape.Aggregate(1, (product, d) => product * d);
    if (metadata.ElementType == typeof(float))
    {
        float[] values = Enumerable.Range(0, count).Select(i => i * 37L % 101 / 101f - 0.5f).ToArray();
        return NamedOnnxValue.CreateFromTensor(name, new DenseTensor<float>(values, shape));
    }
    if (metadata.ElementType == typeof(long))
    {
        long[] values = Enumerable.Repeat(1L, count).ToArray(); // valid as token id, as mask and as type
        return NamedOnnxValue.CreateFromTensor(name, new DenseTensor<long>(values, shape));
    }
    throw new NotSupportedException($"input {name}: this example makes float and long inputs only");
}
